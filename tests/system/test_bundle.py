"""What `flwr run .` sends to every node: the four packages, and nothing that lies beside them."""

import io
import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("fedcel", "strategies", "clients", "sims")
LEFT_OUT = tuple(("sims", name) for name in ("play", "report", "tracking.py", "watch"))
BAIT = (
    ".env.toml",
    ".env.json",
    "server.toml",
    "certificates/keys.json",
    "runs/one/settings.toml",
    "runs/one/events.jsonl",
    "one/settings.toml",
    "one/events.jsonl",
    "docs/results/rows.json",
    "docs/notes.md",
    "shared/notes.md",
    "examples/deployment/certificates.py",
    "tests/conftest.py",
    "tests/bench/load.py",
    "fedcel/.env.toml",
    "clients/node.key",
    "clients/node.json",
    "sims/report/settings.json",
    "sims/rows.json",
    "sims/settings.toml",
)
"""Files of the kinds that a bundle takes, where a bundle of this app must not take them."""


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Build the app with `flwr build`, from a copy with bait in it."""
    folder = tmp_path_factory.mktemp("bundle")
    app = folder / "fedcel"
    app.mkdir()
    for package in PACKAGES:
        shutil.copytree(ROOT / package, app / package, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "LICENSE", "README.md", ".gitignore"):
        shutil.copy(ROOT / name, app)
    for name in BAIT:
        (app / name).parent.mkdir(parents=True, exist_ok=True)
        (app / name).write_text("{}")
    flwr = Path(sys.executable).parent / "flwr"
    environment = {**os.environ, "FLWR_HOME": str(folder / "flwr")}
    subprocess.run([flwr, "build", "--app", app], cwd=folder, env=environment, check=True)
    (found,) = folder.glob("*.fab")
    return found.read_bytes()


def test_the_bundle_is_the_four_packages_and_their_scenarios(bundle: bytes) -> None:
    """Every module but those of tests and pages, every scenario; below 2.5 megabytes."""
    modules = [path.relative_to(ROOT) for p in PACKAGES for path in (ROOT / p).rglob("*.py")]
    wanted = {p.as_posix() for p in modules if p.parts[:2] not in LEFT_OUT}
    wanted |= {f"sims/scenarios/{path.name}" for path in (ROOT / "sims/scenarios").glob("*.toml")}
    wanted |= {"pyproject.toml", "LICENSE", ".info/CONTENT"}
    with zipfile.ZipFile(io.BytesIO(bundle)) as found:
        assert set(found.namelist()) == wanted
    assert len(bundle) < 2_500_000


def test_both_apps_start_from_the_bundle_alone(bundle: bytes, tmp_path: Path) -> None:
    """Neither needs a template, which do not travel; the packaged scenarios are readable."""
    with zipfile.ZipFile(io.BytesIO(bundle)) as found:
        found.extractall(tmp_path)
    script = """if True:
        import sys, clients.flower.client_app
        import clients.flower.evaluation_client, strategies.server_app
        assert "jinja2" not in sys.modules and "sims" not in sys.modules
        from sims.bench import scenario
        assert scenario.read_scenario("digits").variants
        for name in ("fedcel", "strategies", "clients", "sims"):
            print(sys.modules[name].__file__)
    """
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(tmp_path / name / "__init__.py") for name in PACKAGES]


def test_a_wheel_has_every_file() -> None:
    """By its settings; `make` installs the wheel elsewhere and trains with it."""
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    assert sorted(tools["packages"]["find"]["include"]) == sorted(f"{name}*" for name in PACKAGES)
    for name in PACKAGES:
        paths = [path for path in (ROOT / name).rglob("*") if path.is_file()]
        modules = [path for path in paths if path.suffix == ".py"]
        assert all((path.parent / "__init__.py").exists() for path in modules)
        data = {path for path in paths if path.suffix in (".toml", ".jinja", ".typed")}
        assert data == {
            path for found in tools["package-data"][name] for path in (ROOT / name).glob(found)
        }
