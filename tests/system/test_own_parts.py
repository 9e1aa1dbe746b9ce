"""A part of every kind from another distribution: built, installed, tested, run, attacked."""

import inspect
import json
import math
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from fedcel import testing
from fedcel.attacks import Attack
from sims.commands.main import main
from sims.results.attack_results import read_attack_rows
from tests.fedcel.privacy.ledger.ledger_processes import forked
from tests.spared import spare_figures

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "own-parts"
KINDS = {
    "data.source": "own_parts.data:read_rotated_digits",
    "net.name": "own_parts.nets:build_net",
    "defence.name": "own_parts.defence:Largest",
    "cel.kind": "own_parts.cel:build_deviations",
    "local.sampler": "own_parts.sampler:Hamiltonian",
    "strategy.name": "own_parts.strategy:Wary",
    "privacy.mechanism": "own_parts.mechanism:build_subset_selection",
}
GUIDES = EXAMPLE.parents[1] / "docs" / "how-to"
PAGES = [GUIDES / "write-own-parts.md", *sorted(GUIDES.glob("own-*.md"))]
"""The overview, and a page for each two kinds."""
PIXELS, WIDTH, FEATURES, CLASSES = 64, 64, 32, 10


class Installed(NamedTuple):
    """The example's folder as a user has it, and what its run, its attack and its tests printed."""

    source: Path
    printed: str


def use(source: Path, target: Path, log: Path) -> None:
    """Train, attack and test with the parts that are installed, without figures."""
    os.chdir(source)
    sys.path.insert(0, str(target))
    spare_figures(pytest.MonkeyPatch())
    with log.open("a") as file:
        for stream in (sys.stdout, sys.stderr):
            os.dup2(file.fileno(), stream.fileno())
    assert main(["simulate", "scenario.toml", "--engine", "local", "--out", "run"]) == 0
    assert main(["attack", "run"]) == 0
    os._exit(pytest.main(["-p", "no:cacheprovider", "-q", "-s", str(source / "tests")]))


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """Build and install the example with pip, without a network; then use it in one process."""
    place = tmp_path_factory.mktemp("own")
    source, target = place / "own-parts", place / "installed"
    shutil.copytree(EXAMPLE, source, ignore=shutil.ignore_patterns("build", "*.egg-info"))
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    offline = ["--no-index", "--no-deps", "--no-build-isolation", "--target", str(target)]
    subprocess.run([*pip, *offline, str(source)], check=True, cwd=place, timeout=300)
    shutil.rmtree(source / "own_parts")  # what is tested below is what was installed
    _, status = os.waitpid(forked(lambda: use(source, target, place / "log")), 0)
    printed = (place / "log").read_text()
    assert status == 0, printed[-3000:]
    return Installed(source, printed)


def flat(table: dict[str, Any]) -> dict[str, Any]:
    groups = {key: value for key, value in table.items() if isinstance(value, dict)}
    return {f"{g}.{key}": value for g, inner in groups.items() for key, value in inner.items()}


def test_all_own_parts_train_and_attack_together(installed: Installed) -> None:
    """One run in one process, then the own attack: every part left its mark in the files."""
    run = installed.source / "run"
    settings = flat(tomllib.loads((run / "settings.toml").read_text()))
    assert {key: settings[key] for key in KINDS} == KINDS
    result = json.loads((run / "result.json").read_text())
    encoder = (PIXELS + 1) * WIDTH + (WIDTH + 1) * FEATURES
    assert result["encoder-parameters"] == encoder  # of the own net, the transform adds none
    assert result["parameters"] == encoder + 2 * FEATURES + (FEATURES + 1) * CLASSES
    assert result["samples"] == 4
    assert result["accuracy"] > 0.4
    assert 0 < result["bits-beyond-label"] < math.log2(200)
    for epsilon in ("1", "4"):  # a temperature fitted on validation images: it may not boast
        utility = result["private"][epsilon]
        assert utility["confidence-after"] == pytest.approx(utility["accuracy"], abs=0.1)
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    assert len(events) == 20
    assert {event["clients"] for event in events} == {4}
    acting = [event["deviation"] for event in events if "deviation" in event]
    assert len(acting) == 14  # after two rounds of warm-up, until the encoder is frozen
    assert min(acting) > 0

    rows = {row.attack: row for row in read_attack_rows(run)}
    assert rows.keys() == {"neighbours", "optimal"}
    neighbours, bits = rows["neighbours"], rows["optimal"].bits_beyond_label
    assert neighbours.targets == 200
    assert neighbours.mse and neighbours.mean_mse and neighbours.mse < neighbours.mean_mse
    assert bits and bits > 0


def test_each_part_holds_its_contract_where_it_is_installed(installed: Installed) -> None:
    """The example's own tests call the check of every kind of part, and none is skipped."""
    *_, said = installed.printed.splitlines()
    assert "passed" in said and "skipped" not in said
    written = (installed.source / "tests" / "test_contracts.py").read_text()
    assert {name for name in testing.__all__ if f"    {name}(" in written} == {*testing.__all__}


def read_blocks() -> list[str]:
    """Return the blocks of Python of the pages on own parts."""
    text = "\n".join(page.read_text() for page in PAGES)
    return re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def test_the_pages_show_what_is_tested() -> None:
    """Every block of Python of the pages on own parts is a piece of the example, or of a test."""
    root = EXAMPLE.parents[1]
    tests = root / "tests"
    places = [
        tests / "strategies" / "test_stock_strategies.py",
        tests / "fedcel" / "nets" / "test_pretrained.py",
    ]
    places += EXAMPLE.rglob("*.py")
    files = [path.read_text() for path in places]
    blocks = read_blocks()
    assert len(blocks) >= 20
    for block in blocks:
        assert any(block in text for text in files), block


def test_the_pages_show_every_check_and_each_argument_of_an_attack() -> None:
    """A worked test of each kind; of `reconstruct` the signature and what each argument is."""
    blocks = read_blocks()
    attacks = (GUIDES / "own-attacks-and-mechanisms.md").read_text()
    for check in testing.__all__:
        assert any(f"    {check}(" in block for block in blocks), check
    arguments = [*inspect.signature(Attack.reconstruct).parameters][1:]
    for argument in arguments:
        assert any(f"        {argument}: " in block for block in blocks), argument
        assert f"\n| `{argument}` | " in attacks, argument
