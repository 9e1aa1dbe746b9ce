"""Page of compared cuts: one file, no network needed."""

from collections.abc import Mapping

from jaxtyping import Float
from torch import Tensor

from fedcel.leakage import CutComparison, LeakMaps
from sims.report.chart import (
    FAINT,
    Chart,
    Point,
    Series,
    choose_look,
    render_chart,
)
from sims.report.cuts_table import mark_cut, tabulate_cuts
from sims.report.page import inline_svg
from sims.report.reconstruction_strips import (
    SENT,
    draw_leak_strips,
    limit_strips,
    make_image_strips,
)
from sims.report.templates import render_template

WIDE_RANGE = 100.0
"""Ratio of the most and the fewest bits above which the axis is logarithmic."""
Pictures = Mapping[str, tuple[Float[Tensor, "T C H W"], LeakMaps]]
"""Rebuilt images and maps, by layer."""


def render_cuts(
    comparison: CutComparison,
    title: str,
    conditions: str,
    *,
    originals: Float[Tensor, "T C H W"] | None,
    pictures: Pictures,
    attacks: Mapping[str, float],
    versions: Mapping[str, str],
) -> str:
    """Render the page as HTML.

    `conditions` names model and images in a sentence; `attacks` are squared errors by layer.
    """
    maps = {layer: leak_maps for layer, (_, leak_maps) in pictures.items()}
    map_strips, maps_note = draw_leak_strips(maps)
    shown = {} if originals is None else {SENT: originals}
    shown |= {f"rebuilt at {layer}": rebuilt for layer, (rebuilt, _) in pictures.items()}
    strips = [*make_image_strips(shown), *map_strips]
    return render_template(
        "report/cuts.html.jinja",
        title=title,
        versions=", ".join(f"{name} {version}" for name, version in versions.items()),
        cuts=comparison,
        conditions=conditions,
        charts=[
            (title, inline_svg(render_chart(chart, title).decode()))
            for title, chart in chart_cuts(comparison).items()
        ],
        table=tabulate_cuts(comparison, attacks),
        strips=limit_strips(strips),
        maps_note=maps_note,
        is_first_only=any(len(part.deviation) < len(strips[0].images) for part in maps.values()),
        is_rough=not all(part.is_exact for part in maps.values()),
    )


def chart_cuts(comparison: CutComparison) -> dict[str, Chart]:
    """Chart linearised bits of the cuts, and exact bits of these and of the answer, by title.

    Cuts for which no other leaks less at no more operations have a name and a look each.
    """
    cuts = [*comparison.cuts, comparison.answer]
    named = [c for c in cuts if c in comparison.pareto or c is comparison.recommended]
    others = [cut for cut in cuts if cut not in named]
    marker = {"color": FAINT, "marker": "o", "linestyle": "none", "fillstyle": "none"}
    groups = [("other cuts", marker, others)]
    for number, cut in enumerate(named):
        look = {**choose_look(number), "linestyle": "none"}
        groups.append((mark_cut(comparison, cut), look, [cut]))

    def make_chart(bits: Mapping[str, float], errors: Mapping[str, float]) -> Chart:
        series = []
        for name, look, group in groups:
            shown = [cut for cut in group if cut.layer in bits]
            points = [
                Point(c.macs / 1e6, bits[c.layer], y_half=errors.get(c.layer), name=c.layer)
                for c in shown
            ]
            series += [Series(name, look, points, "marks")] if points else []
        is_wide = max(bits.values()) > WIDE_RANGE * max(1.0, min(bits.values()))
        scale = "symlog" if is_wide else "linear"
        label = "million operations on the device"
        return Chart(series, {"xlabel": label, "ylabel": "bits", "yscale": scale})

    linearised = {cut.layer: cut.linearised for cut in cuts if cut.linearised is not None}
    bits = {layer: leak.bits for layer, leak in linearised.items()}
    errors = {layer: leak.bits_uncertainty for layer, leak in linearised.items()}
    exact = {cut.layer: cut.exact_bits for cut in cuts}
    title = f"exact {comparison.unit}, of these {comparison.images} images"
    charts = {f"linearised {comparison.unit}": make_chart(bits, errors)} if linearised else {}
    return {**charts, title: make_chart(exact, {})}
