"""The wheel: all that a user needs, nothing of the tests, and it runs where it was installed."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("fedcel", "strategies", "clients", "sims")


def built(folder: Path) -> Path:
    """Return the wheel of a copy of the sources: what an earlier build left does not get in."""
    source = folder / "source"
    bytecode = shutil.ignore_patterns("__pycache__")
    for package in PACKAGES:
        shutil.copytree(ROOT / package, source / package, ignore=bytecode)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    build = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--quiet"]
    subprocess.run([*build, "--wheel-dir", str(folder), str(source)], check=True)
    return next(folder.glob("*.whl"))


@pytest.mark.long
def test_a_wheel_is_whole_and_runs(tmp_path: Path) -> None:
    """Every source and data file is in it; installed elsewhere, it trains and draws a report."""
    wheel, place = built(tmp_path), tmp_path / "place"
    names = set(ZipFile(wheel).namelist())
    data = (".py", ".toml", ".jinja")
    wanted = {
        str(path.relative_to(ROOT))
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.suffix in data or path.name == "py.typed"
    }
    assert wanted <= names
    others = {name.split("/")[0] for name in names - wanted}
    assert others == {wheel.name.rsplit("-", 3)[0] + ".dist-info"}
    install = [sys.executable, "-m", "pip", "install", "--no-deps", "--quiet", "--target"]
    subprocess.run([*install, str(place), str(wheel)], check=True)
    run = tmp_path / "run"
    given = ["--engine", "local", "--set", "rounds=3", "--set", "chain.burn-in=0.6"]
    python(tmp_path, place, "-m", "sims", "simulate", "digits", *given, "--out", str(run))
    assert (run / "report.html").exists()
    found = python(tmp_path, place, "-c", "import sims; print(sims.__file__)")
    assert Path(found.strip()).is_relative_to(place)


def python(here: Path, place: Path, *words: str) -> str:
    """Return what Python prints, run elsewhere with the packages of this folder."""
    env = {**os.environ, "PYTHONPATH": str(place)}
    command = [sys.executable, *words]
    done = subprocess.run(command, cwd=here, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout
