"""Progress for people."""

import sys
import time

import pytest

from fedcel.attacks import ESTIMATE
from sims import progress

EVENT: dict[str, object] = {"round": 2, "accuracy": 0.5, "within-class-spread": 0.1}


@pytest.mark.parametrize(("parent", "bar"), [(None, True), (object(), False)])
def test_bars_of_several_processes_would_erase_each_other(
    parent: object,
    bar: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A terminal has the first process's bar, and lines of the others."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(progress, "parent_process", lambda: parent, raising=False)
    with progress.show_rounds("cell", 2) as show_round:
        show_round(EVENT)
    said = capsys.readouterr().err
    assert ("\x1b" in said) == bar
    line = "training cell: all 2 rounds done, accuracy 0.500, spread within classes 0.100\n"
    assert bar or said == line
    assert not bar or ("round 2 of 2" in said and "measuring the leak" in said)


def test_the_time_left_is_shared_by_the_processes() -> None:
    """Five cells of ten seconds, two at a time, are three times ten; nothing is made up."""
    assert progress.estimate_left([8.0, 12.0], 5, 2) == ", about 30 s left"
    assert progress.estimate_left([10.0], 3, 1) == ", about 30 s left"
    assert progress.estimate_left([10.0], 3, 4) == ", about 10 s left"
    assert progress.estimate_left([], 3, 4) == ""


def test_each_line_tells_how_much_is_left(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where no terminal is: of a training, and of attacks, of which those done are named."""
    now = 0.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    with progress.show_rounds("training", 10) as show_round:
        now = 100.0  # of which nobody knows how many an engine took to begin, or a resumed run has
        show_round(EVENT)
        now = 120.0
        show_round(EVENT | {"round": 4})
        now = 0.0
    with progress.show_attacks("cell") as listener:
        listener.begin_seed(0, 4, "decoder, seed 0")
        now = 20.0
        listener.begin_seed(1, 4, "rmle, seed 0")
        now = 31.0
        listener.show_line("step 3/9, loss 1.0")
    assert capsys.readouterr().err.splitlines() == [
        "training: round 2 of 10, accuracy 0.500, spread within classes 0.100, 100 s so far",
        "training: round 4 of 10, accuracy 0.500, spread within classes 0.100, about 60 s left",
        "attacking cell: 1 of 4 attacks done, rmle, seed 0, about 60 s left",
        "attacking cell: 1 of 4 attacks done, step 3/9, loss 1.0, about 62 s left",
    ]


def test_a_line_counts_whole_attacks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two seeds of three of the second are done; the bar knows, the line says what is finished."""
    now = 0.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    with progress.show_attacks("cell") as listener:
        now = 20.0
        listener.begin_seed(1 + 2 / 3, 4, "rmle, seed 2")
    assert ": 1 of 4 attacks done, rmle, seed 2" in capsys.readouterr().err


def test_the_time_of_an_attack_is_told_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    """In a line of its own, whenever the last one was."""
    with progress.show_attacks("cell") as listener:
        listener.begin_seed(0, 1, "decoder, seed 0")
        listener.show_line(f"decoder, seed 0: {ESTIMATE} 4 min")
        listener.show_line("decoder, seed 0: epoch 2/50")
    said = capsys.readouterr().err
    assert said == "attacking cell: decoder, seed 0: takes about 4 min\n"


def test_a_bar_of_attacks_runs_to_its_end(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    with progress.show_attacks("attacking") as listener:
        listener.begin_seed(0, 2, "decoder, seed 0")
        listener.show_line("epoch 1/2")
        listener.begin_seed(2, 2, "writing")
    said = capsys.readouterr().err
    assert "attacking" in said
    assert "writing" in said


def test_waiting_is_said_when_it_lasts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Once, and not where it is over before."""
    with progress.show_waiting("reading"):
        pass
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(progress, "WAIT_SECONDS", 0.0)
    with progress.show_waiting("reading"):
        deadline = time.monotonic() + 30
        said = ""
        while not said and time.monotonic() < deadline:
            said += capsys.readouterr().err
            time.sleep(0.01)
    assert said + capsys.readouterr().err == "reading, 0 s so far\n"


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_name_steers_no_terminal(
    is_terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither by control characters nor, in a bar, by what is a markup there."""
    if is_terminal:
        monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(progress, "LINE_SECONDS", -1.0)
    with progress.show_attacks("x\x1b]0;title\x07[red]y") as listener:
        listener.begin_seed(0, 2, "a\x9b2J[bold]b")
    said = capsys.readouterr().err
    assert r"\x1b]0;title\x07[red]y" in said and r"a\x9b2J[bold]b" in said
    assert "\x1b]0" not in said and "\x9b" not in said


def test_forced_colours_make_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A notebook sets this for all that it starts; bars would fill its page with lines."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert not progress.is_on_terminal()


def test_the_time_left_moves_while_a_step_takes_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten seconds a step: less with each second, more once a step takes longer than that."""
    clock = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    pace = progress.Pace()
    assert pace.estimate_left(4) is None
    estimates = []
    for now, finished in ((10.0, 1), (14.0, 1), (20.0, 1), (50.0, 1), (60.0, 2), (60.0, 4)):
        clock[0] = now
        pace.note(finished)
        estimates.append(pace.estimate_left(4))
    assert estimates == [30.0, 26.0, 20.0, 50.0, 60.0, 0.0]
    assert pace.estimate_left(0) is None


def test_a_long_silence_is_broken(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing new comes from what works: the line that stands is repeated, with the time."""
    monkeypatch.setattr(progress, "WAIT_SECONDS", 0.2)
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.4)
    lines = list[str]()

    def wait_for_lines(count: int) -> None:
        limit = time.monotonic() + 30
        while len(lines) < count:
            assert time.monotonic() < limit, lines
            time.sleep(0.02)
            lines.extend(capsys.readouterr().err.splitlines())

    with progress.show_steps("measuring") as show_step:
        wait_for_lines(1)
        show_step(1, 2, "half")
        wait_for_lines(3)
    assert lines[0].startswith("measuring, ") and lines[0].endswith(" s so far")
    assert all(line.startswith("measuring: half, about ") for line in lines[1:])
