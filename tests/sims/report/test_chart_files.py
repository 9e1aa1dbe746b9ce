"""Charts as files: what the CSV says is what is drawn, with its intervals."""

import csv
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from sims.report.chart_files import ChartPoint, list_points, read_points, write_chart
from sims.report.figures import escape_label


def draw_everything() -> Figure:
    """Return a figure with all that charts are made of, and marks that are no points."""
    figure = Figure()
    upper, lower = figure.subplots(2, 1)
    upper.errorbar([1.0], [2.0], xerr=0.25, yerr=0.5, label=escape_label("_a $b$"))
    upper.errorbar([3.0], [4.0], yerr=1.0, label="upright alone")
    upper.plot([1, 3], [2, 4])
    upper.axvline(7)
    upper.set_ylabel("up")
    lower.plot([1, 2], [5, 6], label="curve")
    lower.fill_between([1, 2], [4, 5], [6, 8], label="curve")
    lower.bar([0.5], [9], 0.2, label="bars")
    lower.set(xlabel="across", ylabel="low")
    return figure


def test_points_and_their_intervals_by_hand() -> None:
    """Lines, intervals in either direction, a band around its line, bars; nothing without name."""
    assert read_points(draw_everything()) == [
        ChartPoint("up", "_a $b$", 1, 2, 0.75, 1.25, 1.5, 2.5),
        ChartPoint("up", "upright alone", 3, 4, None, None, 3, 5),
        ChartPoint("low", "curve", 1, 5, None, None, 4, 6),
        ChartPoint("low", "curve", 2, 6, None, None, 5, 8),
        ChartPoint("low", "bars", pytest.approx(0.5), 9),
    ]


def test_three_files_the_same_each_time(tmp_path: Path) -> None:
    """SVG, PDF without a date, and CSV whose third column has the axis's name."""
    for folder in ("a", "b"):
        write_chart(draw_everything(), tmp_path / folder, "chart")
    names = [f"chart.{ending}" for ending in ("svg", "pdf", "csv")]
    first, second = ([(tmp_path / f / name).read_bytes() for name in names] for f in ("a", "b"))
    assert first == second
    assert first[1].startswith(b"%PDF") and b"/Type3" not in first[1]
    head, *rows = csv.reader((tmp_path / "a" / names[2]).read_text().splitlines())
    assert head == ["panel", "series", "across", "y", "x_low", "x_high", "y_low", "y_high"]
    assert rows[0] == ["up", "_a $b$", "1.0", "2.0", "0.75", "1.25", "1.5", "2.5"]


def test_panels_with_other_axes_share_no_name() -> None:
    """The column would name one panel's axis for all of them."""
    figure = draw_everything()
    figure.axes[0].set_xlabel("another")
    assert list_points(figure).startswith("panel,series,x,y,")
