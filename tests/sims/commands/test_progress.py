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
    assert bar or said == "cell: round 2/2, accuracy 0.500 spread 0.100\n"


def test_the_time_left_is_shared_by_the_processes() -> None:
    """Five cells of ten seconds, two at a time, are three times ten; nothing is made up."""
    assert progress.estimate_left([8.0, 12.0], 5, 2) == ", about 30 s left"
    assert progress.estimate_left([10.0], 3, 1) == ", about 30 s left"
    assert progress.estimate_left([10.0], 3, 4) == ", about 10 s left"
    assert progress.estimate_left([], 3, 4) == ""
