"""The page train-a-regression.md: its command trains, and its program gives the number back."""

import re
from pathlib import Path
from typing import Any

import pytest

from sims.bench.scenario import list_cells, read_scenario
from sims.engines.simulate import simulate

PAGE = (Path(__file__).parents[1] / "docs" / "how-to" / "train-a-regression.md").read_text()


def test_the_number_is_nearer_than_the_mean(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of the variant of the page's command; who answers with the mean is 67 off."""
    assert "fedcel simulate diabetes --variant cluster --set cel.weight=0.1" in PAGE
    cells = list_cells(read_scenario("diabetes"), {"engine": "local", "seed": 0})
    (cell,) = (one for one in cells if one.variant.name == "cluster" and one.strength == 0.1)
    monkeypatch.chdir(tmp_path)
    simulate(cell.settings, Path("runs/diabetes"))
    names: dict[str, Any] = {}
    (program,) = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    exec(program, names)
    assert float(names["error"]) < 55
    assert 30 < float(names["spread"].mean()) < 90
    assert f"mean absolute error {names['error']:.0f} of 25 to 346" in capsys.readouterr().out
