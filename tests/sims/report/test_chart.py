"""Charts: what the CSV lists is what is drawn, with its intervals, the same bytes each time."""

import csv
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.container import ErrorbarContainer

from sims.report.chart import (
    Chart,
    Look,
    Mark,
    Note,
    Panel,
    Point,
    Series,
    choose_look,
    count_columns,
    draw_chart,
    legend_height,
    list_points,
    render_chart,
    write_chart,
)

LOOK = choose_look(0)
ALL = Chart(
    "across",
    [
        Panel(
            "up",
            [
                Series("_a $b$", LOOK, [Point(1, 2, 0.75, 1.25, 1.5, 2.5), Point(3, 4, name="c")],
                       "marks"),
                Series("", Look("grey", "", ":"), [Point(1, 2), Point(3, 4)]),
            ],
            [Mark(7, "seven"), Mark(3, is_level=True)],
            [Note("below", 1.0, "red")],
            {"ylim": (0, 5)},
        ),
        Panel("low", [
            Series("curve", LOOK, [Point(1, 5, y_low=4, y_high=6), Point(2, 6, y_low=5, y_high=8)]),
        ]),
    ],
)  # fmt: skip


def test_everything_is_drawn() -> None:
    """Points with their intervals, a band, marks and notes; aids are in no legend."""
    figure = draw_chart(ALL)
    upper, lower = figure.axes
    (drawn,) = (c for c in upper.containers if isinstance(c, ErrorbarContainer))
    across, upright = (bars.get_segments()[0] for bars in drawn.lines[2])
    np.testing.assert_allclose(across, [(0.75, 2), (1.25, 2)])
    np.testing.assert_allclose(upright, [(1, 1.5), (1, 2.5)])
    assert {text.get_text() for text in upper.texts} == {"seven", "below"}
    assert upper.get_ylim() == (0, 5)
    np.testing.assert_allclose(np.asarray(lower.lines[0].get_xydata()), [(1, 5), (2, 6)])
    band = np.asarray(lower.collections[0].get_paths()[0].vertices)
    assert {(1, 4), (1, 6), (2, 5), (2, 8)} <= {(x, y) for x, y in band.tolist()}
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names == [r" _a \$b\$", "curve"]
    assert (upper.get_xlabel(), lower.get_xlabel()) == ("", "across")


def test_three_files_the_same_each_time(tmp_path: Path) -> None:
    """SVG, PDF without a date, and CSV whose third column has the axis's name."""
    for folder in ("a", "b"):
        write_chart(ALL, tmp_path / folder, "chart")
    names = [f"chart.{ending}" for ending in ("svg", "pdf", "csv")]
    first, second = ([(tmp_path / f / name).read_bytes() for name in names] for f in ("a", "b"))
    assert first == second
    assert first[1].startswith(b"%PDF") and b"/Type3" not in first[1]
    head, *rows = csv.reader((tmp_path / "a" / names[2]).read_text().splitlines())
    assert head == ["panel", "series", "across", "y", "x_low", "x_high", "y_low", "y_high"]
    assert rows == [
        ["up", "_a $b$", "1", "2", "0.75", "1.25", "1.5", "2.5"],
        ["up", "c", "3", "4", *[""] * 4],
        ["low", "curve", "1", "5", "", "", "4", "6"],
        ["low", "curve", "2", "6", "", "", "5", "8"],
    ]


@pytest.mark.parametrize("label", [r"$\frac$", "_hidden", "a\nb", "<b>&amp;", "--> <script>", "$"])
def test_odd_labels(label: str) -> None:
    """Labels are text: no mathematics, no markup, nothing hidden."""
    chart = Chart("x", [Panel("y", [Series(label, LOOK, [Point(1, 2)])])])
    assert len(draw_chart(chart).legends[0].get_texts()) == 1
    text = render_chart(chart, "odd", "svg").decode()
    assert ElementTree.fromstring(text).tag.endswith("svg")
    assert "<script" not in text and "<b>" not in text
    assert label.split()[0] in list_points(chart)


def test_looks_differ_without_colour() -> None:
    """The first eight differ by marker alone, the first 24 in colour and marker."""
    assert len({choose_look(i).marker for i in range(8)}) == 8
    assert len({choose_look(i)[:2] for i in range(24)}) == 24
    assert len({choose_look(i) for i in range(48)}) == 48


@pytest.mark.parametrize(("longest", "columns"), [(24, 2), (25, 1)])
def test_long_names_stand_one_below_the_other(longest: int, columns: int) -> None:
    """Two of them side by side would not fit into the chart."""
    names = [f"{n}{'n' * (longest - 1)}" for n in range(4)]
    assert count_columns(names) == columns
    panel = Panel("y", [Series(name, LOOK, [Point(1, 2)]) for name in names])
    assert legend_height(panel) == pytest.approx(0.26 * 4 / columns)
