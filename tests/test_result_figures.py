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
    for name, file in result_figures.FIGURES.items():
        digest = result_figures.digest_points(result_figures.list_sweeps(file))
        svg = (DOCS / "figures" / f"{name}.svg").read_text()
        assert f"<!-- points {digest} -->" in svg, f"run docs/extensions/result_figures.py: {name}"


def test_a_point_that_moves_changes_the_digest(result_figures: ModuleType) -> None:
    """By more than the last digit that a figure shows."""
    sweeps = result_figures.list_sweeps("frontier-faces.json")
    name, (series, is_undefended) = next(iter(sweeps.items()))
    first, *others = series.points
    points = [first._replace(x=first.x + 0.01), *others]
    moved = sweeps | {name: (series._replace(points=points), is_undefended)}
    assert result_figures.digest_points(moved) != result_figures.digest_points(sweeps)


def test_each_variant_has_its_own_look(result_figures: ModuleType) -> None:
    """One colour and one marker, a name, and a place in a panel."""
    looks = result_figures.LOOKS
    assert len({look.colour for look in looks.values()}) == len(looks)
    assert len({look.marker for look in looks.values()}) == len(looks)
    drawn = {variant for panel in result_figures.PANELS.values() for variant in panel}
    assert looks.keys() == drawn == result_figures.NAMES.keys()


def test_a_panel_names_what_it_draws(result_figures: ModuleType) -> None:
    """Legends list their own panel's variants in the colours of its lines."""
    sweeps = result_figures.list_sweeps("frontier-faces.json")
    for axes in draw_chart(result_figures.make_chart(sweeps, 1.58)).axes:
        variants = [name for name in result_figures.PANELS[axes.get_title()] if name in sweeps]
        legend = axes.get_legend()
        assert legend is not None and len(variants) > 4
        assert [text.get_text() for text in legend.get_texts()] == [
            result_figures.NAMES[variant] for variant in variants
        ]
        colours = {line.get_color() for line in axes.get_lines()}
        assert {result_figures.LOOKS[variant].colour for variant in variants} <= colours
