"""Frontiers of trained attacks: where the points are, and what needs no attack beside them."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sims.report import attack_figures, figures
from sims.report.book import read_book
from sims.report.summary import Summary, count_choices, summarise_book
from sims.results.estimate import Estimate
from sims.results.records import BenchRow
from tests.sims.report.conftest import add_attack, attack_of
from tests.sims.report.made import cell, notes

Make = Callable[..., Path]


def aimed(folder: Path, targets: int) -> tuple[Summary, ...]:
    """Return the summaries of a bench whose attacks all rebuilt so many images."""
    rows = json.loads((folder / "bench.json").read_text())
    for row in rows:
        row["attacks"] = [attack | {"targets": targets} for attack in row["attacks"]]
    (folder / "bench.json").write_text(json.dumps(rows))
    return summarise_book(read_book(folder))


def test_anchors_in_mse_plot(make_bench: Make) -> None:
    """The label-only line and the mean-image line are there."""
    figure = attack_figures.draw_mse_trade_off(summarise_book(read_book(make_bench())))
    assert figure is not None
    assert notes(figure) == pytest.approx({"label only": 0.0434, "mean image": 0.0737})


def test_points_of_the_identification_plot(make_bench: Make) -> None:
    """Each variant is drawn at (identified, accuracy), both in percent, intervals too."""
    found = summarise_book(read_book(make_bench()))
    rates = (Estimate(0.8, 0.02, 0.01, 3), Estimate(0.2), Estimate(0.3))
    found = tuple(replace(s, picked=rate) for s, rate in zip(found, rates, strict=True))
    figure = attack_figures.draw_identification_trade_off(found)
    assert figure is not None
    drawn = [line for line in figure.axes[0].lines if str(line.get_marker()) in figures.MARKERS]
    points = np.array([np.asarray(line.get_xydata())[0] for line in drawn])
    np.testing.assert_allclose(points, [(80, 95.1), (20, 94.8), (30, 96.2)])
    assert attack_figures.to_percent(rates[0]) == Estimate(80, 2, 1, 3)


def test_only_who_was_attacked_is_drawn(make_bench: Make) -> None:
    """One cell with a trained attack is enough, and the others are left out; none is no figure."""
    bare, *others = (replace(s, picked=Estimate()) for s in summarise_book(read_book(make_bench())))
    assert attack_figures.draw_identification_trade_off([bare, *others]) is None
    assert attack_figures.draw_mse_trade_off([cell("none", 0.9, 2.0)]) is None
    figure = attack_figures.draw_identification_trade_off(
        [bare, replace(others[0], picked=Estimate(0.2))]
    )
    assert figure is not None
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["cluster"]


def test_anchors_in_identification_plot(make_bench: Make) -> None:
    """Chance is 1 of 100, the label alone names 1 of 10; both are in view and named."""
    figure = attack_figures.draw_identification_trade_off(summarise_book(read_book(make_bench())))
    assert figure is not None
    assert notes(figure) == pytest.approx({"chance": 1, "label only": 10})
    low, high = figure.axes[0].get_xlim()
    assert low == pytest.approx(-0.06 * high)


def test_fewer_targets_are_easier_to_tell_apart(make_bench: Make) -> None:
    """Of 20 rebuilt images one is found by chance in 5 %; the label's share of 100 is not shown."""
    folder = make_bench()
    figure = attack_figures.draw_identification_trade_off(aimed(folder, 20))
    assert figure is not None
    assert notes(figure) == pytest.approx({"chance": 5})
    figure = attack_figures.draw_identification_trade_off(aimed(folder, 400))
    assert figure is not None
    assert notes(figure) == pytest.approx({"chance": 1, "label only": 10})


def test_no_chance_where_the_attack_chose_among_different_numbers(make_bench: Make) -> None:
    """A seed of 20 targets beside one of 100: what chance is nobody says.

    What another attack than the worst one chose among is no matter.
    """
    folder = make_bench(seeds=2)
    add_attack(folder, 0, attack_of(0.9, "other", targets=20))
    assert [s.picked_among for s in summarise_book(read_book(folder))] == [100] * 3
    rows = json.loads((folder / "bench.json").read_text())
    rows[0]["attacks"] = [attack_of(0.03, targets=20)]
    (folder / "bench.json").write_text(json.dumps(rows))
    book = read_book(folder)
    held = [replace_worst(row) for row in book.rows]
    assert count_choices(held[:2], 100) is None and count_choices(held[2:4], 100) == 100


def replace_worst(row: BenchRow) -> BenchRow:
    """Return a row held to its first attack, whatever others met."""
    return row.model_copy(update={"worst": row.attacks[0]})
