"""The page of `--live`: whatever becomes of it, the run goes on."""

import sys
from pathlib import Path

import pytest

from fedcel.settings import parse_settings
from sims.commands.live_page import measure_for_page, show_live_page


@pytest.mark.parametrize("program", ["/bin/false", "/nowhere/python"])
def test_a_page_that_fails_ends_no_run(
    program: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Its process ends at once, or does not start, which is told; what is trained is trained."""
    monkeypatch.setattr(sys, "executable", program)
    is_trained = False
    with show_live_page(tmp_path / "run", is_shown=True):
        is_trained = True
    assert is_trained
    line = capsys.readouterr().err
    assert ("the run goes on without it" in line) == (program != "/bin/false")
    assert not (tmp_path / "run").exists()


def test_an_error_of_the_run_is_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes through as it was raised; without --live nothing is begun."""
    monkeypatch.setattr(sys, "executable", "/bin/false")
    for is_shown in (True, False):
        with pytest.raises(ZeroDivisionError), show_live_page(tmp_path, is_shown=is_shown):
            raise ZeroDivisionError


def test_the_leak_is_measured_twenty_times_unless_a_setting_says_otherwise() -> None:
    """Every third of 60 rounds; as the scenario or the command says where one does."""
    settings = parse_settings({"rounds": 60})
    assert measure_for_page(settings, {}).bits_every == 3
    assert measure_for_page(settings, {"bits-every": 0}).bits_every == 0
    assert measure_for_page(parse_settings({"bits-every": 7}), {}).bits_every == 7
    assert measure_for_page(parse_settings({"rounds": 12, "cel.kind": "none"}), {}).bits_every == 1
