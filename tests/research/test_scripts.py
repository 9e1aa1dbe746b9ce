"""Scripts of docs/research as they are called."""

import runpy
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "docs" / "research" / "scripts"


@pytest.mark.parametrize(
    "name", ["cifar_net", "escalate", "leakage_measures", "membership", "reproduce", "uncertainty"]
)
def test_a_script_shows_its_help(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Under its own name."""
    path = str(SCRIPTS / f"{name}.py")
    monkeypatch.setattr(sys, "argv", [path, "--help"])
    with pytest.raises(SystemExit) as ending:
        runpy.run_path(path, run_name="__main__")
    assert ending.value.code == 0
    assert f"Usage: {name}.py" in capsys.readouterr().out
