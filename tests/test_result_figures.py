"""The figures of the research pages show the kept rows, each variant in a look of its own."""

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

from sims.report.chart import draw_chart

DOCS = Path(__file__).parents[1] / "docs"


@pytest.fixture(scope="module")
def result_figures() -> ModuleType:
    """Return the site's module that draws accuracy against bits."""
    sys.path.insert(0, str(DOCS / "extensions"))
    try:
        return importlib.import_module("result_figures")
    finally:
        sys.path.remove(str(DOCS / "extensions"))


def test_figures_show_their_rows(result_figures: ModuleType) -> None:
    """A figure that was not drawn again after its rows changed says other points."""
    for name, _, digest in result_figures.list_figures():
        svg = (DOCS / "figures" / f"{name}.svg").read_text()
        assert f"<!-- points {digest} -->" in svg, "run docs/extensions/result_figures.py"


def test_a_point_that_moves_changes_the_digest(result_figures: ModuleType) -> None:
    """By more than the last digit that a figure shows."""
    chart = result_figures.make_chart(result_figures.FRONTIERS["frontier-faces"])
    series, *others = chart.series
    first, *points = series.points
    moved = series._replace(points=[first._replace(x=first.x + 0.01), *points])
    changed = chart._replace(series=[moved, *others])
    assert result_figures.digest_points(changed) != result_figures.digest_points(chart)


def test_each_variant_has_its_own_look(result_figures: ModuleType) -> None:
    """One colour and one marker, a name, and a place in a chart."""
    looks = result_figures.LOOKS
    assert len({colour for colour, _, _ in looks.values()}) == len(looks)
    assert len({marker for _, marker, _ in looks.values()}) == len(looks)
    charts = [
        variants
        for frontier in result_figures.FRONTIERS.values()
        for variants in frontier.charts.values()
    ]
    drawn = {variant for chart in charts for variant in chart}
    assert looks.keys() == drawn == result_figures.NAMES.keys()


def test_a_chart_names_what_it_draws(result_figures: ModuleType) -> None:
    """Legends list their own chart's variants in the colours of its lines, on the same axes."""
    whole = result_figures.make_chart(result_figures.FRONTIERS["frontier-faces"])
    drawn, limits = {series.name for series in whole.series}, set()
    for part, chart in result_figures.split_chart(whole).items():
        names = result_figures.NAMES
        variants = [name for name in result_figures.CHARTS[part] if names[name] in drawn]
        figure = draw_chart(chart)
        (legend,), (axes,) = figure.legends, figure.axes
        assert len(variants) > 4
        assert [text.get_text() for text in legend.get_texts()] == [
            result_figures.NAMES[variant] for variant in variants
        ]
        colours = {line.get_color() for line in axes.get_lines()}
        assert {result_figures.LOOKS[variant][0] for variant in variants} <= colours
        limits.add((axes.get_xlim(), axes.get_ylim()))
    assert len(limits) == 1
