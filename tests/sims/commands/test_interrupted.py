"""The command line when it is interrupted: exit 130, what goes on, and going on works."""

import errno
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from threading import Thread

import pytest

from fedcel.errors import DivergedError, EngineError, FailedError, RoundError
from sims.commands.interruption import explain_interruption, explain_resume
from sims.commands.main import main

TRAINED_BY = {
    "simulate": "sims.engines.simulate.simulate",
    "bench": "sims.bench.run_bench.run_bench",
    "tune": "sims.tuning.tune.tune_scenario",
}
ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("command", ["simulate", "bench", "tune"])
def test_ctrl_c_names_what_goes_on(
    command: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The very command, with the folder that was chosen for it; tune needs none."""

    def interrupt(_: object, place: Path, *__: object, **___: object) -> None:
        if command == "simulate":
            place.mkdir(parents=True)
            (place / "settings.toml").touch()
        raise KeyboardInterrupt

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(f"{TRAINED_BY[command]}", interrupt)
    assert main([command, "digits", "--set", "net.name=a:b c"]) == 130
    said = capsys.readouterr().err
    if command == "tune":
        assert said.endswith("command again: fedcel tune digits --set 'net.name=a:b c'\n")
        return
    found = re.search(r"--out (runs/digits-[0-9-]+)", said)
    assert found
    out = found.group(1)
    line = f"fedcel {command} digits --set 'net.name=a:b c' --out {out}"
    assert said.endswith(
        f"{line} --resume\n" if command == "simulate" else f"command again: {line}\n"
    )


def test_a_run_without_state_names_no_command_that_cannot_work(tmp_path: Path) -> None:
    """A strategy that averages weights cannot be resumed."""
    (tmp_path / "settings.toml").write_text('[strategy]\nupload = "weights"\n')
    text = explain_resume(tmp_path, ["simulate", "digits"], is_resumed=False)
    assert "keeps no state" in text and "--resume" not in text


def test_what_diverged_is_not_gone_on_with(tmp_path: Path) -> None:
    """It would diverge again."""
    with pytest.raises(DivergedError, match="^away$"), explain_interruption(lambda: "; go on"):
        raise DivergedError("away")
    assert explain_resume(tmp_path, [], is_resumed=False) == ""


@pytest.mark.parametrize("kind", [RoundError, EngineError, FailedError])
def test_a_failure_that_may_pass_names_what_goes_on(
    kind: type[Exception],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Exit 1, and the same command with --resume."""

    def fail(_: object, place: Path, *__: object, **___: object) -> None:
        place.mkdir(parents=True)
        (place / "settings.toml").touch()
        raise kind("round 3 kept 7.0%")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(TRAINED_BY["simulate"], fail)
    assert main(["simulate", "digits", "--out", "runs/a"]) == 1
    said = capsys.readouterr().err
    assert said == (
        "fedcel: round 3 kept 7.0%; complete rounds are saved, go on: "
        "fedcel simulate digits --out runs/a --resume\n"
    )


def count_rounds(run: Path) -> int:
    events = run / "events.jsonl"
    return len(events.read_text().splitlines()) if events.exists() else 0


def interrupt_after(run: Path, rounds: int, process: int) -> None:
    """Send SIGINT to a process once its run has ended that many rounds."""
    limit = time.monotonic() + 120
    while count_rounds(run) < rounds:
        assert time.monotonic() < limit, f"round {rounds} was not reached"
        time.sleep(0.1)
    os.kill(process, signal.SIGINT)


def test_ctrl_c_saves_complete_rounds_and_resume_ends_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A real process, a real SIGINT: exit 130, how to go on, and going on works, here."""
    run = tmp_path / "run"
    words = ["simulate", "digits", "--engine", "local", "--set", "rounds=3000", "--out", str(run)]
    command = [sys.executable, "-m", "sims", *words]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    interrupt_after(run, 3, process.pid)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert f"run: {run}\n" in said
    assert f"--out {run} --resume" in said
    assert "Traceback" not in said
    thread = Thread(target=interrupt_after, args=(run, count_rounds(run) + 1, os.getpid()))
    thread.start()
    assert main([*words, "--resume"]) == 130
    thread.join()
    assert f"--out {run} --resume" in capsys.readouterr().err
    lines = [json.loads(line)["round"] for line in (run / "events.jsonl").read_text().splitlines()]
    assert lines == list(range(1, len(lines) + 1))


def test_an_exit_in_the_middle_is_a_failure() -> None:
    """With 0, too: of a user's part, or of Ray's handler of SIGTERM."""
    words = r"SystemExit: 0 \(.*test_interrupted.py, line .*\) ended it before it was done"
    with (
        pytest.raises(FailedError, match=f"^{words}; go on$"),
        explain_interruption(lambda: "; go on"),
    ):
        raise SystemExit(0)


@pytest.mark.parametrize(("is_begun", "status"), [(True, 1), (False, 2)])
def test_a_disk_that_is_full_in_the_middle_names_what_goes_on(
    is_begun: bool,
    status: int,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The run failed, though its input was right; before there is one the place is wrong."""

    def fill(_: object, place: Path, *__: object, **___: object) -> None:
        if is_begun:
            place.mkdir()
            (place / "settings.toml").touch()
        raise OSError(errno.ENOSPC, "No space left on device", str(place / "state"))

    monkeypatch.setattr(TRAINED_BY["simulate"], fill)
    out = str(tmp_path / "run")
    assert main(["simulate", "digits", "--out", out]) == status
    error = capsys.readouterr().err
    assert f"cannot read or write {out}/state: No space left on device" in error
    assert error.endswith(f"go on: fedcel simulate digits --out {out} --resume\n") == is_begun
