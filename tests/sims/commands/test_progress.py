"""Progress for people."""

import pytest

from sims.commands import progress

EVENT: dict[str, object] = {"round": 2, "accuracy": 0.5, "within-class-spread": 0.1}


@pytest.mark.parametrize(("parent", "bar"), [(None, True), (object(), False)])
def test_bars_of_several_processes_would_erase_each_other(
    parent: object,
    bar: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A terminal has the first process's bar, and lines of the others."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(progress, "parent_process", lambda: parent, raising=False)
    with progress.show_rounds("cell", 2) as tell:
        tell(EVENT)
    said = capsys.readouterr().err
    assert ("\x1b" in said) == bar
    assert bar or said == "cell: round 2/2, accuracy 0.500, spread within classes 0.100\n"
    assert not bar or "2 rounds, measured" in said


def test_the_time_left_is_shared_by_the_processes() -> None:
    """Five cells of ten seconds, two at a time, are three times ten; nothing is made up."""
    assert progress.estimate_left([8.0, 12.0], 5, 2) == ", about 30 s left"
    assert progress.estimate_left([10.0], 3, 1) == ", about 30 s left"
    assert progress.estimate_left([10.0], 3, 4) == ", about 10 s left"
    assert progress.estimate_left([], 3, 4) == ""


def test_an_attack_says_how_much_is_left(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where no terminal is: each line names the attacks that are done, and an estimate."""
    now = 0.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    with progress.show_attacks("attacking") as (say, tell):
        tell(0, 4, "decoder, seed 0")
        now = 20.0
        tell(1, 4, "rmle, seed 0")
        now = 31.0
        say("step 3/9, loss 1.0")
    assert capsys.readouterr().err.splitlines() == [
        "attacking: rmle, seed 0, 1.0 of 4 attacks done, about 60 s left",
        "attacking: step 3/9, loss 1.0, 1.0 of 4 attacks done, about 60 s left",
    ]


def test_a_bar_of_attacks_runs_to_its_end(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a terminal."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    with progress.show_attacks("attacking") as (say, tell):
        tell(0, 2, "decoder, seed 0")
        say("epoch 1/2")
        tell(2, 2, "writing")
    said = capsys.readouterr().err
    assert "attacking" in said
    assert "writing" in said
