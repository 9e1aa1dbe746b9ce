"""Page of compared cuts: one file, no network needed."""

from collections.abc import Mapping

from jaxtyping import Float
from torch import Tensor

from fedcel.leakage import CutComparison, LeakMaps
from sims.report.chart import (
    FAINT,
    Chart,
    Look,
    Panel,
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

LARGE_BITS = 20.0
"""Bits above which the axis is logarithmic, but for the lowest."""
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
        chart=inline_svg(render_chart(chart_cuts(comparison), "cuts", "svg").decode()),
        table=tabulate_cuts(comparison, attacks),
        strips=limit_strips(strips),
        maps_note=maps_note,
        is_first_only=any(len(part.deviation) < len(strips[0].images) for part in maps.values()),
        is_rough=not all(part.is_exact for part in maps.values()),
    )


def chart_cuts(comparison: CutComparison) -> Chart:
    """Chart linearised bits of the cuts, and exact bits of these and of the answer.

    Cuts for which no other leaks less at no more operations have a name and a look each.
    """
    cuts = [*comparison.cuts, comparison.answer]
    named = [c for c in cuts if c in comparison.pareto or c is comparison.recommended]
    others = [cut for cut in cuts if cut not in named]
    groups = [("other cuts", Look(FAINT, "o", "none", filled=False), others)]
    for number, cut in enumerate(named):
        look = choose_look(number)._replace(line="none")
        groups.append((mark_cut(comparison, cut), look, [cut]))

    def make_panel(title: str, bits: Mapping[str, float]) -> Panel:
        series = []
        for name, look, group in groups:
            shown = [cut for cut in group if cut.layer in bits]
            points = [Point(c.macs / 1e6, bits[c.layer], name=c.layer) for c in shown]
            series += [Series(name, look, points, "marks")] if points else []
        is_wide = max(bits.values(), default=0.0) > LARGE_BITS
        axis = {"yscale": "symlog"} if is_wide else {}
        return Panel("bits", series, axis=axis, title=title)

    linearised = {cut.layer: cut.linearised.bits for cut in cuts if cut.linearised is not None}
    exact = {cut.layer: cut.exact_bits for cut in cuts}
    return Chart(
        "million operations on the device",
        [
            make_panel(f"linearised {comparison.unit}", linearised),
            make_panel(f"exact {comparison.unit}, of these {comparison.images} images", exact),
        ],
    )
