"""Charts: points are drawn with their intervals, the same bytes each time."""

from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.container import ErrorbarContainer

from sims.report.chart import (
    Chart,
    Mark,
    Note,
    Point,
    Series,
    choose_look,
    count_columns,
    draw_chart,
    legend_height,
    render_chart,
    write_chart,
)

LOOK = choose_look(0)
ALL = Chart(
    [
        Series("_a $b$", LOOK, [Point(1, 2, 0.25, 0.5), Point(3, 4, name="c")], "marks"),
        Series("", {"color": "grey", "linestyle": ":"}, [Point(1, 2), Point(3, 4)]),
        Series("curve", LOOK, [Point(1, 5, band=(4, 6)), Point(2, 6, band=(5, 8))]),
    ],
    {"xlabel": "across", "ylabel": "up", "ylim": (0, 9)},
    [Mark(7, "seven"), Mark(3, is_level=True)],
    [Note("below", 1.0, "red")],
)


def test_everything_is_drawn() -> None:
    """Points with their intervals, a band, marks and notes; aids are in no legend."""
    figure = draw_chart(ALL)
    (axes,) = figure.axes
    (drawn,) = (c for c in axes.containers if isinstance(c, ErrorbarContainer))
    across, upright = (bars.get_segments()[0] for bars in drawn.lines[2])
    np.testing.assert_allclose(across, [(0.75, 2), (1.25, 2)])
    np.testing.assert_allclose(upright, [(1, 1.5), (1, 2.5)])
    assert {text.get_text() for text in axes.texts} == {"seven", "below"}
    assert axes.get_ylim() == (0, 9)
    lines = [np.asarray(line.get_xydata()).tolist() for line in axes.lines]
    assert [[1, 5], [2, 6]] in lines and [[1, 2], [3, 4]] in lines
    band = np.asarray(axes.collections[-1].get_paths()[0].vertices)
    assert {(1, 4), (1, 6), (2, 5), (2, 8)} <= {(x, y) for x, y in band.tolist()}
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names == [r" _a \$b\$", "curve"]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("across", "up")


def test_two_files_the_same_each_time(tmp_path: Path) -> None:
    """SVG, and PDF without a date and without fonts of Type 3."""
    svgs = {write_chart(ALL, tmp_path / folder, "chart") for folder in ("a", "b")}
    first, second = (
        [(tmp_path / folder / f"chart.{form}").read_bytes() for form in ("svg", "pdf")]
        for folder in ("a", "b")
    )
    assert first == second and svgs == {first[0].decode()}
    assert first[1].startswith(b"%PDF") and b"/Type3" not in first[1]


@pytest.mark.parametrize("label", [r"$\frac$", "_hidden", "a\nb", "<b>&amp;", "--> <script>", "$"])
def test_odd_labels(label: str) -> None:
    """Labels are text: no mathematics, no markup, nothing hidden."""
    chart = Chart([Series(label, LOOK, [Point(1, 2)])], {})
    assert len(draw_chart(chart).legends[0].get_texts()) == 1
    text = render_chart(chart, "odd").decode()
    assert ElementTree.fromstring(text).tag.endswith("svg")
    assert "<script" not in text and "<b>" not in text


def test_looks_differ_without_colour() -> None:
    """The first eight differ by marker alone, the first 24 in colour and marker."""
    looks = [choose_look(i) for i in range(48)]
    assert len({look["marker"] for look in looks[:8]}) == 8
    assert len({(look["color"], look["marker"]) for look in looks[:24]}) == 24
    assert len({tuple(look.values()) for look in looks}) == 48


@pytest.mark.parametrize(("longest", "columns"), [(24, 2), (25, 1)])
def test_long_names_stand_one_below_the_other(longest: int, columns: int) -> None:
    """Two of them side by side would not fit into the chart."""
    names = [f"{n}{'n' * (longest - 1)}" for n in range(4)]
    assert count_columns(names) == columns
    chart = Chart([Series(name, LOOK, [Point(1, 2)]) for name in names], {})
    assert legend_height(chart) == pytest.approx(0.26 * 4 / columns)
