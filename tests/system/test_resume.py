"""A run that is killed again and again ends as one that was left alone."""

import json
import os
import random
import resource
import signal
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
from safetensors.torch import load_file

from fedcel.runs import run_folder
from fedcel.settings import Settings, parse_settings
from sims.engines import local
from tests.fedcel.privacy.ledger.ledger_processes import forked

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
KILLS = int(os.environ.get("FEDCEL_KILLS", "10"))
SETTINGS: dict[str, str | int | float] = {
    "clients": 3,
    "clients-per-round": 2,
    "rounds": 16,
    "engine": "local",
    "local.steps": 4,
    "cel.kind": "cluster",
    "cel.refresh": 0,
    "cel.ramp": 0.3,
    "chain.burn-in": 0.5,
    "chain.thin": 5,
    "chain.samples": 8,
}


def go_on(folder: Path, settings: Settings) -> None:
    """Train what is left of the run, the folder's first or a later life."""
    begun = (folder / "state" / "server.safetensors").exists()
    local.train_locally(settings, folder, lambda _: None, resume=begun, measure=False)


def count_rounds(folder: Path) -> int:
    events = folder / "events.jsonl"
    return len(events.read_text().splitlines()) if events.exists() else 0


def killed(folder: Path, settings: Settings, after: int, seconds: float) -> None:
    """Train in a process of its own, which ends without any warning so long after a round."""
    child = forked(lambda: go_on(folder, settings))
    limit = time.monotonic() + 60
    while count_rounds(folder) < after:
        assert time.monotonic() < limit, f"round {after} was not reached"
        time.sleep(0.001)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def files(folder: Path) -> dict[str, object]:
    """Return all that a run leaves, but how long its rounds took."""
    events = [json.loads(line) for line in (folder / "events.jsonl").open()]
    for event in events:
        del event["seconds"]
    tensors = {
        str(path.relative_to(folder)): {k: v.tolist() for k, v in load_file(path).items()}
        for path in folder.rglob("*.safetensors")
    }
    return {"events": events, **tensors}


@pytest.mark.parametrize("kills", [3, pytest.param(KILLS, marks=pytest.mark.long)])
def test_kills_change_nothing(tmp_path: Path, kills: int) -> None:
    """This engine, kills at random moments of any round: model, chain, state, events to the bit."""
    settings = parse_settings({**SETTINGS, "rounds": 10 * kills})
    alone, troubled = tmp_path / "alone", tmp_path / "troubled"
    for folder in (alone, troubled):
        run_folder.create_run(folder, settings)
    begin = time.monotonic()
    go_on(alone, settings)
    whole = time.monotonic() - begin
    draw, rounds = random.Random(0), []
    for number in range(kills):
        # By rounds: a machine that is suddenly faster would end the run before its last kills.
        after = 10 * number + draw.randrange(8)
        killed(troubled, settings, after, draw.uniform(0.0, whole / (10 * kills)))
        rounds.append(count_rounds(troubled))
    go_on(troubled, settings)
    assert len(set(rounds)) > min(2, kills - 2), "the kills all fell into the same round"
    assert files(alone) == files(troubled)


def fills(folder: Path, settings: Settings, after: int) -> None:
    """Train until the disk takes no more, and end with code 28; tests' own output is a file too."""

    def tell(event: Mapping[str, object]) -> None:
        if event["round"] == after:
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))

    try:
        local.train_locally(settings, folder, tell, measure=False)
    except OSError:
        os._exit(28)


def test_a_full_disk_ends_the_run_and_damages_nothing(tmp_path: Path) -> None:
    """From round 8 on no file may be longer than 1 000 bytes; with room again it goes on, equal."""
    settings = parse_settings(SETTINGS)
    alone, full = tmp_path / "alone", tmp_path / "full"
    for folder in (alone, full):
        run_folder.create_run(folder, settings)
    go_on(alone, settings)
    _, status = os.waitpid(forked(lambda: fills(full, settings, 7)), 0)
    assert os.waitstatus_to_exitcode(status) == 28
    assert len((full / "events.jsonl").read_text().splitlines()) == 7
    assert not list(full.rglob(".*")), "a half-written file was left"
    go_on(full, settings)
    assert files(alone) == files(full)
