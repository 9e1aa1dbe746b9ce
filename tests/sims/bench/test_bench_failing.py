"""A bench with a bad cell: the others go on, whatever it was, and it is named with the reason."""

import json
import os
import signal
from multiprocessing import parent_process
from pathlib import Path

import pytest

from fedcel.errors import DataError, FailedError, FedcelError
from sims.bench import run_bench, scenario
from tests.sims.small import QUICK


class OddError(Exception):
    """An error that cannot be pickled: it is made of two things."""

    def __init__(self, one: str, two: str) -> None:
        super().__init__(f"{one}\n{two}")


def odd(*given: object, **named: object) -> None:
    """Fail as no builder of a net should."""
    raise OddError("out of", "luck")


def deadly(*given: object) -> None:
    """End the process that builds a net, as the kernel does for want of memory."""
    assert parent_process() is not None
    os.kill(os.getpid(), signal.SIGKILL)


def planned(folder: Path, *settings: str) -> tuple[scenario.Scenario, list[scenario.Cell]]:
    """Return a scenario of variants v0, v1, ... with these settings."""
    path = folder / "s.toml"
    variants = [
        f"[[variant]]\nname = 'v{number}'\nsettings = {{ {given} }}\n"
        for number, given in enumerate(settings)
    ]
    path.write_text("".join(variants))
    plan = scenario.read_scenario(str(path))
    return plan, scenario.list_cells(plan, QUICK)


def outcome(folder: Path) -> tuple[list[str], dict[str, str]]:
    """Return the variants in the table, and why the other cells failed."""
    rows = json.loads((folder / "bench.json").read_text())
    failed = json.loads((folder / "failed.json").read_text())
    return [row["variant"] for row in rows], {each["cell"]: each["reason"] for each in failed}


def test_whatever_a_cell_raises_the_others_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Wrong input of one cell, an exception of the user's own in another: both are named."""
    plan, found = planned(
        tmp_path, "clients = 1790", f"net = {{ name = '{__name__}:odd' }}", "temperature = 1.0"
    )
    with pytest.raises(DataError, match=r"^v0-0, v1-0 failed, the reasons.*report\.html"):
        run_bench.run_bench(plan, found, tmp_path / "b")
    there, failed = outcome(tmp_path / "b")
    assert there == ["v2"] and list(failed) == ["v0-0", "v1-0"]
    assert "client" in failed["v0-0"]
    part = f"net.name '{__name__}:odd' failed: OddError: out of luck ({__file__}, line"
    assert failed["v1-0"].startswith(part)
    assert f"v1-0 failed: {failed['v1-0']} (2/3)\n" in capsys.readouterr().err
    assert "failed: OddError: out of luck" in (tmp_path / "b" / "report.html").read_text()


def test_images_that_no_cell_can_read_are_refused_at_once(tmp_path: Path) -> None:
    """One error in place of one for each cell, and no folder."""
    path = tmp_path / "absent.npz"
    plan, found = planned(tmp_path, *[f"data = {{ source = 'npz', path = '{path}' }}"] * 5)
    with pytest.raises(FedcelError, match=r"^data\.path is .*absent\.npz', which is no file"):
        run_bench.run_bench(plan, found, tmp_path / "b")
    assert not (tmp_path / "b").exists()


def test_many_failed_cells_are_no_wall_of_names(tmp_path: Path) -> None:
    """Every cell fails; failed.json names them all."""
    plan, found = planned(tmp_path, *[f"net = {{ name = '{__name__}:odd' }}"] * 5)
    with pytest.raises(FedcelError, match=r"^v0-0, v1-0, v2-0 and 2 more failed, the reasons"):
        run_bench.run_bench(plan, found, tmp_path / "b")
    assert len(outcome(tmp_path / "b")[1]) == 5


@pytest.mark.long
def test_a_killed_process_costs_its_own_cell(tmp_path: Path) -> None:
    """Another process does the rest; an exception comes through the pipe as what it says."""
    plan, found = planned(
        tmp_path,
        f"net = {{ name = '{__name__}:deadly' }}",
        "temperature = 1.0",
        f"net = {{ name = '{__name__}:odd' }}",
        "seed = 0",
    )
    with pytest.raises(FailedError, match="^v0-0, v2-0 failed"):
        run_bench.run_bench(plan, found, tmp_path / "b", 2)
    there, failed = outcome(tmp_path / "b")
    assert there == ["v1", "v3"] and set(failed) == {"v0-0", "v2-0"}
    assert failed["v0-0"].startswith("its process was killed, perhaps for want of memory")
    assert "failed: OddError: out of luck (" in failed["v2-0"]
