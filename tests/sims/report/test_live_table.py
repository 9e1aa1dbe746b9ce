"""The service's part of the report: one line a price and attack, one picture from two prices on."""

import json
from pathlib import Path
from typing import Any

import pytest

from fedcel.errors import RunError
from sims import report
from sims.report.book import read_live
from sims.report.tables import tabulate_live

ROW: dict[str, Any] = {
    "mechanism": "laplace",
    "epsilon": 4.0,
    "answers": 60,
    "spent": 240.0,
    "accuracy": 0.5,
    "attack": "logit-inversion",
    "seed": 0,
    "candidates": 30,
    "mse": 0.05,
    "identification-1": 0.1,
    "oracle-mse": 0.04,
}


def written(folder: Path, rows: list[dict[str, Any]]) -> Path:
    """Write live.json."""
    (folder / "live.json").write_text(json.dumps(rows))
    return folder


def test_seeds_are_one_line_and_prices_are_in_order(tmp_path: Path) -> None:
    """The mean over seeds; what was paid beside it."""
    again = {"seed": 1, "identification-1": 0.3, "mse": 0.07}
    rows = [ROW, ROW | again, ROW | {"epsilon": 0.5, "spent": 30.0, "accuracy": 0.2}]
    found = tabulate_live(read_live(written(tmp_path, rows)))
    assert [row[2:7] for row in found.rows] == [
        ("0.5", "30", "60", "30", "20.0"),
        ("4", "240", "60", "30", "50.0"),
    ]
    assert found.rows[1][7].startswith("20.0") and found.rows[1][8].startswith("0.0600")
    assert found.rows[1][9] == "0.0400"
    assert "logit-inversion" in report.format_live_table(tmp_path)


def test_one_price_has_no_picture_and_no_file_no_rows(tmp_path: Path) -> None:
    """And damage is told."""
    assert read_live(tmp_path) == []
    with pytest.raises(RunError, match="attack again"):
        read_live(written(tmp_path, [{"attack": "x"}]))
