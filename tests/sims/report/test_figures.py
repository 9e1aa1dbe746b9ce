"""Figures show the numbers, are the same bytes twice, and survive odd labels."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from fedcel.posterior.diagnostics import Trace
from fedcel.settings import Settings
from sims.report import figures
from sims.report.book import FinishedRun, read_book
from sims.report.summary import Summary, summarise_book
from sims.results.columns import BITS, RIGHT_IMAGE
from sims.results.intervals import estimate
from sims.results.records import (
    BenchRow,
    CellAttack,
    PrivateUtility,
    ReliabilityBins,
    RunResult,
)
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


@pytest.mark.parametrize(
    ("draw", "marks"),
    [
        (figures.draw_bits_trade_off, {"label only": 0, "all of it": 5.3}),
        (figures.draw_mse_trade_off, {"label only": 0.0434, "mean image": 0.0737}),
        (figures.draw_identification_trade_off, {"chance": 1, "label only": 10}),
    ],
)
def test_marks_and_points(
    make_bench: Make,
    draw: Callable[[Sequence[Summary]], Figure | None],
    marks: dict[str, float],
) -> None:
    """What needs no attack is a named line; the first variant is at its numbers, 0 is in view."""
    figure = draw(summarise_book(read_book(make_bench())))
    assert figure is not None
    assert notes(figure) == pytest.approx(marks)
    axes = figure.axes[0]
    lines = [line for line in axes.lines if str(line.get_marker()) in figures.MARKERS]
    points = np.array([np.asarray(line.get_xydata())[0] for line in lines])
    np.testing.assert_allclose(points[:, 1], [95.1, 94.8, 96.2])
    if draw is figures.draw_bits_trade_off:
        np.testing.assert_allclose(points[:, 0], [4.46, 0.54, 0.67])
    if draw is not figures.draw_mse_trade_off:
        low, high = axes.get_xlim()
        assert low == pytest.approx(-0.06 * high)


def picked(name: str, accuracy: float, share: float | None) -> Summary:
    """Return a summary whose worst attack picks this share of the images."""
    return cell(name, accuracy, 2.0, attack=CellAttack(attack="decoder", identification_1=share))


def test_points_of_the_identification_plot() -> None:
    """Each variant is drawn at (identified, accuracy), both in percent, intervals too."""
    figure = figures.draw_identification_trade_off(
        [picked("none", 0.951, 0.8), picked("a", 0.948, 0.2), picked("b", 0.962, 0.3)]
    )
    assert figure is not None
    drawn = [line for line in figure.axes[0].lines if str(line.get_marker()) in figures.MARKERS]
    points = np.array([np.asarray(line.get_xydata())[0] for line in drawn])
    np.testing.assert_allclose(points, [(80, 95.1), (20, 94.8), (30, 96.2)])
    look, seeds = figures.choose_look(0), cell("a", 0.9, [1.0, 2.0, 3.0])
    point = figures.place_point(look, seeds, BITS)
    assert point is not None
    assert (point.x, point.x_half, point.y) == (2.0, estimate([1.0, 2.0, 3.0]).half, 90.0)
    row = seeds.row.model_copy(update={"worst": picked("a", 0.9, 0.2).row.worst})
    point = figures.place_point(look, replace(seeds, rows=(row,) * 3), RIGHT_IMAGE)
    assert point is not None and point.x == pytest.approx(20) and point.x_half is not None


def test_only_who_was_attacked_is_drawn() -> None:
    """One cell with a trained attack is enough, and the others are left out; none is no figure."""
    bare, other = cell("none", 0.951, 4.46), cell("gated", 0.962, 0.67)
    assert figures.draw_identification_trade_off([bare, other]) is None
    assert figures.draw_mse_trade_off([cell("none", 0.9, 2.0)]) is None
    figure = figures.draw_identification_trade_off([bare, picked("cluster", 0.948, 0.2), other])
    assert figure is not None
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["cluster"]


def test_fewer_targets_are_easier_to_tell_apart(make_bench: Make) -> None:
    """Of 20 rebuilt images one is found by chance in 5 %; the label's share of 100 is not shown."""
    folder = make_bench()
    figure = figures.draw_identification_trade_off(aimed(folder, 20))
    assert figure is not None
    assert notes(figure) == pytest.approx({"chance": 5})
    figure = figures.draw_identification_trade_off(aimed(folder, 400))
    assert figure is not None
    assert notes(figure) == pytest.approx({"chance": 1, "label only": 10})


def test_no_chance_where_the_attack_chose_among_different_numbers(make_bench: Make) -> None:
    """A seed of 20 targets beside one of 100: what chance is nobody says.

    What another attack than the worst one chose among is no matter.
    """
    folder = make_bench(seeds=2)
    add_attack(folder, 0, attack_of(0.9, "other", targets=20))
    summaries = summarise_book(read_book(folder))
    assert [figures.count_choices(s.rows) for s in summaries] == [100] * 3
    rows = json.loads((folder / "bench.json").read_text())
    rows[0]["attacks"] = [attack_of(0.03, targets=20)]
    (folder / "bench.json").write_text(json.dumps(rows))
    book = read_book(folder)
    held = [replace_worst(row) for row in book.rows]
    assert figures.count_choices(held[:2]) is None and figures.count_choices(held[2:4]) == 100


def replace_worst(row: BenchRow) -> BenchRow:
    """Return a row held to its first attack, whatever others met."""
    return row.model_copy(update={"worst": row.attacks[0]})


def trace(path: Path, rows: int) -> Trace:
    """Return a trace of independent draws from round 41 on."""
    chain, stream = Trace(path / "trace.safetensors"), torch.Generator().manual_seed(0)
    for number in range(rows):
        chain.add(41 + number, torch.randn(6, generator=stream))
    return chain


def test_the_path_is_the_functionals_over_their_rounds(tmp_path: Path) -> None:
    """Four panes, in standard deviations, at the rounds they were sampled in."""
    figure = figures.draw_chain_path(trace(tmp_path, 30))
    assert figure is not None
    lines = [axes.lines[0] for axes in figure.axes]
    assert len(lines) == 4
    assert list(lines[0].get_xdata()) == list(range(41, 71))
    assert abs(torch.as_tensor(lines[0].get_ydata()).std().item() - 1) < 1e-5


def test_the_verdict_begins_where_there_is_enough(tmp_path: Path) -> None:
    """Every tenth round from the twentieth on; nothing before."""
    figure = figures.draw_convergence(trace(tmp_path, 45))
    assert figure is not None
    assert list(figure.axes[0].lines[0].get_xdata()) == [60, 70, 80]
    assert figures.draw_convergence(trace(tmp_path / "short", 15)) is None
    assert figures.draw_chain_path(trace(tmp_path, 0)) is None


def test_looks_differ_without_colour() -> None:
    """The first eight differ by marker alone, the first 24 in colour and marker."""
    assert len({figures.choose_look(i).marker for i in range(8)}) == 8
    assert len({figures.choose_look(i)[:2] for i in range(24)}) == 24
    assert len({figures.choose_look(i) for i in range(48)}) == 48


@pytest.mark.parametrize("accuracy", [1.0, 0.98, 0.5])
def test_the_axis_of_a_single_point_ends_at_all_of_it(accuracy: float) -> None:
    """No accuracy above 100 % is written, and the point is in view."""
    figure = figures.draw_bits_trade_off([cell("none", accuracy, 5.0)])
    assert figure is not None
    axes = figure.axes[0]
    low, high = axes.get_ylim()
    assert low < 100 * accuracy < high
    assert max(tick for tick in axes.get_yticks() if tick <= high) <= 100


def test_strengths_are_joined_in_their_order() -> None:
    """Not in the order in which they are listed."""
    swept = [cell("v", 1 - n / 10, 5 - n, label=f"v, {n}", strength=n) for n in (1.0, 0.3, 3.0)]
    figure = figures.draw_bits_trade_off(swept)
    assert figure is not None
    joined = np.asarray(figure.axes[0].lines[0].get_xydata())
    np.testing.assert_allclose(joined, [(4.7, 97), (4, 90), (2, 70)])
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["v"]
    assert list(figures.choose_looks(swept)) == ["v"]


def test_many_variants_share_out_over_panels_with_the_undefended_in_each() -> None:
    """Thirteen defended variants, two strengths each: six or fewer to a panel, on the same axes."""
    names = [f"v{n}" for n in range(13)]
    bare = cell("none", 0.5, 0.5)
    many = [cell(name, 0.5, 0.5, strength=s) for name in names for s in (1.0, 2.0)]
    figure = figures.draw_bits_trade_off([*many[:6], bare, *many[6:]])
    assert figure is not None
    legends = [
        [text.get_text() for text in legend.get_texts()]
        for axes in figure.axes
        if (legend := axes.get_legend())
    ]
    assert [len(names) for names in legends] == [7, 7, 2]
    assert all(names[0] == "none" for names in legends)
    assert sorted(n for names in legends for n in names[1:]) == sorted(names)
    assert len({axes.get_xlim() for axes in figure.axes}) == 1
    assert not figure.legends


def test_a_collapsed_net_does_not_press_the_others_into_a_line() -> None:
    """It is named at the foot, with its accuracy; without an undefended net all are drawn."""
    bare, near, far = cell("none", 0.9, 0.5), cell("a", 0.85, 2.0), cell("b", 0.3, 1.0)
    figure = figures.draw_bits_trade_off([bare, near, far])
    assert figure is not None
    assert figure.axes[0].get_ylim() == pytest.approx((78, 92))
    assert notes(figure) == {"↓ 30 %": 1.0, "label only": 0, "all of it": 5.3}
    for summaries in ([bare, near], [near, far]):
        figure = figures.draw_bits_trade_off(summaries)
        assert figure is not None and notes(figure) == {"label only": 0, "all of it": 5.3}
        low, high = figure.axes[0].get_ylim()
        assert all(low < 100 * (s.row.accuracy or 0) < high for s in summaries)


def test_curve_marks_burn_in(make_bench: Make) -> None:
    """0.8 of 41 rounds, rounded up to a whole round; the spread's axis is logarithmic."""
    summaries = summarise_book(read_book(make_bench(seeds=2)))
    figure = figures.draw_curve(
        summaries,
        figures.choose_looks(summaries),
        lambda e: e.within_class_spread,
        label="spread",
        log=True,
    )
    assert figure is not None
    assert notes(figure) == {"burn-in ends": 33}
    assert figure.axes[0].get_yscale() == "log"


def test_same_bytes(make_bench: Make) -> None:
    """The same numbers give the same SVG, which is well-formed."""
    summaries = summarise_book(read_book(make_bench()))
    drawn = [figures.draw_bits_trade_off(summaries) for _ in range(2)]
    once, twice = (figures.render_figure(f, "bits", "svg") for f in drawn if f is not None)
    assert once == twice
    assert ElementTree.fromstring(once).tag.endswith("svg")


@pytest.mark.parametrize("label", [r"$\frac$", "_hidden", "a\nb", "<b>&amp;", "--> <script>", "$"])
def test_odd_labels(label: str) -> None:
    """Labels are text: no mathematics, no markup, nothing hidden."""
    figure = figures.draw_bits_trade_off([cell("v", 0.9, 1.0, label=label, title=label)])
    assert figure is not None
    assert len(figure.legends[0].get_texts()) == 1
    text = figures.render_figure(figure, "odd", "svg").decode()
    ElementTree.fromstring(text)
    assert "<script" not in text
    assert "<b>" not in text


def test_nothing_to_draw() -> None:
    """No numbers, no figure."""
    empty = [cell("v", 0.9, None)]
    assert figures.draw_bits_trade_off(empty) is None
    looks = figures.choose_looks(empty)
    curve = figures.draw_curve(empty, looks, lambda e: e.accuracy, label="accuracy", log=False)
    assert curve is None
    assert figures.draw_reliability({}, looks["v"], "average") is None
    assert figures.draw_private(empty, looks) is None


def test_empty_bins_are_left_out() -> None:
    """A bin without samples has no point."""
    bins = ReliabilityBins(confidence=(0.1, 0.9), accuracy=(0.0, 0.8), count=(0, 5))
    figure = figures.draw_reliability({"posterior": bins}, figures.choose_look(3), "last model")
    assert figure is not None
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["last model"]
    assert np.array(figure.axes[0].lines[0].get_xydata()).tolist() == [[0.9, 0.8]]
    assert [bar.get_height() for bar in figure.axes[1].patches] == [5]
    assert figure.axes[0].lines[0].get_color() == figures.choose_look(3).colour


def test_private_answers_are_a_curve_over_epsilon(outcome: Callable[..., RunResult]) -> None:
    """In the variant's own look, beside the ceiling and the accuracy without privacy."""
    private = {
        "4.0": PrivateUtility(accuracy=0.8, ceiling=0.9),
        "1.0": PrivateUtility(accuracy=0.3, ceiling=0.4),
    }
    run = FinishedRun("run", Settings(), (), outcome(private=private), (), {})
    summaries = [cell("a", 0.9, 1.0), replace(cell("v", 0.95, 1.0), runs=(run,))]
    looks = figures.choose_looks(summaries)
    figure = figures.draw_private(summaries, looks)
    assert figure is not None
    curve, without, ceiling = figure.axes[0].lines
    np.testing.assert_allclose(np.asarray(curve.get_xydata()), [(1, 30), (4, 80)])
    np.testing.assert_allclose(np.asarray(ceiling.get_xydata()), [(1, 40), (4, 90)])
    assert without.get_ydata()[0] == pytest.approx(95)
    assert curve.get_color() == looks["v"].colour != looks["a"].colour


@pytest.mark.parametrize(("longest", "columns"), [(24, 2), (25, 1)])
def test_long_names_stand_one_below_the_other(longest: int, columns: int) -> None:
    """Two of them side by side would not fit into the figure."""
    entries = [(figures.choose_look(i), "n" * longest) for i in range(4)]
    assert figures.count_columns(entries) == columns
    assert figures.legend_height(entries) == pytest.approx(3.2 + 0.26 * 4 / columns)
