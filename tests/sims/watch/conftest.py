"""A small run, and copies of it in each state in which a page may find it."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fedcel.runs import hold_folder
from tests.sims.trained import run

REASONS = ("its update is not finite", "no reply within 3600 s")


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of six rounds, its leak measured in every second one."""
    change = {"bits-every": 2, "data.test": 80, "data.auxiliary": 40, "data.validation": 80}
    return run(tmp_path_factory.mktemp("watch") / "trained", **change)


def copy_run(trained: Path, folder: Path, *, rounds: int = 6, judged: bool = False) -> Path:
    """Copy a run as it was after some rounds; after the last one it is finished.

    In each third round two clients are left out; the chain of a `judged` run has a diagnosis.
    """
    shutil.copytree(trained, folder)
    if rounds < 6:
        (folder / "result.json").unlink()
    lines = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    for line in lines:
        if line["round"] % 3 == 0:
            line["rejected"] = [{"client": k, "reason": REASONS[k]} for k in (0, 1)]
            line |= {"clients": 1, "kept-share": 0.25}
        if judged and line["round"] > 3:
            line |= {"r-hat": 1.5 - 0.1 * line["round"], "ess": 10.0 * line["round"]}
    text = "".join(f"{json.dumps(line)}\n" for line in lines[:rounds])
    (folder / "events.jsonl").write_text(text)
    return folder


@contextmanager
def write_into(folder: Path) -> Iterator[None]:
    """Be the process that writes into a folder."""
    with hold_folder(folder):
        yield
