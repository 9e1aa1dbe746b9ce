"""The command `privacy`: its table, its choice, what it refuses."""

import re
from pathlib import Path

import pytest

from sims.commands.main import main
from tests.clients.serving import made_run


@pytest.fixture
def random_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run without training."""
    run = made_run(**{"data.test": 30, "data.validation": 20, "net.noise": 0.1})
    monkeypatch.setattr("sims.answers.read_run", lambda _: run)
    monkeypatch.setattr("sims.answers.VALIDATION_ANSWERS", 40)
    monkeypatch.setattr("sims.answers.is_at_chance", lambda *_: False)


@pytest.mark.usefixtures("random_run")
def test_every_option_is_in_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A line for each mechanism and clip, the ceiling and the choice."""
    words = ["privacy", str(tmp_path), "--epsilons", "1,4", "--clips", "2"]
    assert main([*words, "--accuracy-loss", "99"]) == 0
    out = capsys.readouterr().out
    for name in ("laplace", "discrete-laplace", "gaussian"):
        for clip in ("l1 2", "clamp 2", "probabilities"):
            cells = r"\d+(  +\d+\.\d \(0\.\d{3}\)){2}"
            assert re.search(rf"^{name} +{clip} +{cells}$", out, re.MULTILINE)
    assert re.search(r"^label-only +- ", out, re.MULTILINE)
    assert re.search(r"^limit for a perfect model +23\.2 +85\.8$", out, re.MULTILINE)
    assert "cheapest within 99 points, chosen on validation images" in out
    assert "epsilon 1\n" in out and "--set privacy.epsilon=1" in out


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--accuracy-loss", "0"], "--accuracy-loss is 0, must be above 0 and below 100"),
        (["--epsilons", "1,x"], "--epsilons is '1,x', must be numbers above 0"),
        (["--clips", "-1"], "--clips is '-1', must be numbers above 0"),
        (["--clips", ""], "--clips is '', must be numbers above 0"),
        ([], "is not a folder; give the folder of a run"),
    ],
)
def test_bad_input_is_refused(
    words: list[str], reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line, exit status 2."""
    assert main(["privacy", str(tmp_path / "none"), *words]) == 2
    assert reason in capsys.readouterr().err


@pytest.mark.usefixtures("random_run")
def test_what_no_mechanism_can_keep_is_refused_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the option that cannot be built, before any is scored."""
    assert main(["privacy", str(tmp_path), "--epsilons", "4,1e-12"]) == 2
    assert "label-only, epsilon 1e-12: epsilon is 1e-12, must be" in capsys.readouterr().err
