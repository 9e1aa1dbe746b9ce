"""The page of files names every file that a fresh run, a bench, a ledger and a device hold."""

import re
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from clients.device.keyed_noise import load_device_key
from clients.device.sent_messages import SentMessages
from fedcel.settings import parse_settings
from sims.attacking.attacked_run import attack_run
from sims.bench.run_bench import run_bench
from sims.bench.scenario import list_cells, read_scenario
from sims.commands.ledger import issue_key
from sims.report import write_report
from tests.sims.small import QUICK
from tests.sims.trained import run

PAGE = (Path(__file__).parents[1] / "docs" / "reference" / "files.md").read_text()
SCENARIO = """title = "two"
[settings]
data = { auxiliary = 40 }
[[variant]]
name = "none"
[[variant]]
name = "cluster"
settings = { cel = { kind = "cluster" } }
"""


def list_patterns(section: str) -> list[str]:
    """Return the names of files in a section's table."""
    (text,) = re.findall(rf"^## {section}\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE)
    cells = re.findall(r"^\| (`[^|]+) \|", text, re.MULTILINE)
    return [name for cell in cells for name in re.findall(r"`([^`]+)`", cell)]


def list_unnamed(folder: Path, patterns: list[str]) -> list[str]:
    """Return the files below a folder that no pattern stands for."""
    files = [str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()]
    assert files
    return [name for name in files if not any(fnmatchcase(name, one) for one in patterns)]


def test_every_file_of_a_run_is_named(tmp_path: Path) -> None:
    """Of a chain, attacked and reported, and of noisy updates; the page names few others."""
    patterns = list_patterns("A run folder")
    chain = run(tmp_path / "chain", **{"attack.names": "optimal", "attack.targets": 4})
    attack_run(chain, parse_settings({"attack.names": "kernel-ridge", "attack.seeds": 1}).attack)
    write_report(chain)
    noisy = {"temperature": 0.0, "update.clip": 1.0, "update.noise": 1.0, "rounds": 2}
    private = run(tmp_path / "private", **noisy, **{"cel.warm-up": 0, "prior.mode": "none"})
    for folder in (chain, private):
        assert list_unnamed(folder, patterns) == []
    names = {str(path.relative_to(f)) for f in (chain, private) for path in f.rglob("*")}
    unseen = {one for one in patterns if not any(fnmatchcase(name, one) for name in names)}
    assert unseen == {"live.json", ".live.json.lock", "cost.json", ".lock", "tracking/*"} | {
        "measured/*.safetensors",
        "play/decoder-*.safetensors",
    }


@pytest.mark.long
def test_every_file_of_a_bench_is_named(tmp_path: Path) -> None:
    """Of its own folder, and of the runs in it."""
    (tmp_path / "two.toml").write_text(SCENARIO)
    bench = tmp_path / "bench"
    plan = read_scenario(str(tmp_path / "two.toml"))
    run_bench(plan, list_cells(plan, QUICK), bench)
    runs = [f"runs/*/{pattern}" for pattern in list_patterns("A run folder")]
    own = [one for one in list_patterns("A bench folder") if one != "runs/*/"]
    assert list_unnamed(bench, [*own, *runs]) == []


def test_every_file_of_a_ledger_and_of_a_device_is_named(tmp_path: Path) -> None:
    """After a key was made, and a device began."""
    (tmp_path / "ledger").mkdir()
    issue_key(tmp_path / "ledger" / "budget.db", "phone", None, 1.0)
    assert list_unnamed(tmp_path / "ledger", list_patterns("A service's ledger")) == []
    (tmp_path / "device").mkdir()
    load_device_key(tmp_path / "device" / "device.key")
    SentMessages(tmp_path / "device" / "sent.txt")
    assert list_unnamed(tmp_path / "device", list_patterns("A device")) == []


def test_an_unnamed_file_is_found(tmp_path: Path) -> None:
    """A file that the page does not name is listed."""
    (tmp_path / "notes.txt").write_text("")
    (tmp_path / "result.json").write_text("")
    assert list_unnamed(tmp_path, list_patterns("A run folder")) == ["notes.txt"]
