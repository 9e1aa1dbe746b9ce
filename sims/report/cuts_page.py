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
from sims.report.page import Part, inline_svg
from sims.report.reconstruction_strips import (
    SENT,
    MappedEncoder,
    draw_leak_strips,
    limit_strips,
    make_image_strips,
)
from sims.report.templates import render_template

LARGE_BITS = 20.0
"""Bits above which the axis is logarithmic, but for the lowest."""
ROUGH_MAPS = (
    "Of large messages they are estimates: “exposed” is off by about 25 % of a pixel's value, and "
    "“unknown” leaves out what leaks in all but the 128 directions in which images differ most."
)
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
    points, accuracy = comparison.limits.max_loss, comparison.accuracy_name
    chart = inline_svg(render_chart(chart_cuts(comparison), "cuts", "svg").decode())
    parts = [
        Part(
            "Leak against operations on the device",
            "Down and left is better. Linearised bits and exact bits are different measures: "
            "compare cuts by the first, a cut and the answer alone by the second.",
            plots=[(f"{comparison.unit} at the most noise that {accuracy} allows", chart)],
        ),
        Part(
            "Cuts",
            "Each cut has the most noise that keeps the rest of the model within "
            f"{points:g} percentage point{'s' * (points != 1)} of {accuracy}, in units of the "
            "features' root mean square. “bits” are those of the linearised channel: an estimate "
            "that does not saturate. “exact bits” count among the given images, so they have a "
            "maximum. “unseen images” limits them for the population. “MSE” is the estimated "
            "squared error of the best reconstruction. “→” marks the recommended cut, “·” one for "
            "which no other leaks less at no more operations, by linearised bits, the answer alone "
            "by its exact ones.",
            tables=[tabulate_cuts(comparison, attacks)],
        ),
    ]
    if originals is not None:
        parts.append(show_pictures(originals, pictures))
    return render_template(
        "report/cuts.html.jinja",
        title=title,
        sentence=comparison.sentence,
        conditions=f"{conditions} {comparison.accuracy_sentence}",
        parts=[part._replace(is_open=True) for part in parts],
        versions=", ".join(f"{name} {version}" for name, version in versions.items()),
    )


def show_pictures(originals: Float[Tensor, "T C H W"], pictures: Pictures) -> Part:
    """Return reconstructions and leak maps at each cut, each kind of map in one colour scale."""
    maps = [leak_maps for _, leak_maps in pictures.values()]
    encoders = [
        MappedEncoder(layer, make_image_strips({"rebuilt": rebuilt}), leak_maps)
        for layer, (rebuilt, leak_maps) in pictures.items()
    ]
    leak_strips, note = draw_leak_strips(encoders)
    strips = limit_strips([*make_image_strips({SENT: originals}), *leak_strips])
    words = [
        "Rebuilt by an attacker who owns the other images. “exposed” and “unknown” are those of "
        "the linearised channel.",
        note,
    ]
    if len(maps[0].deviation) < len(originals):
        words.append("Of images as large as these, they are drawn for the first only.")
    if not all(leak_maps.is_exact for leak_maps in maps):
        words.append(ROUGH_MAPS)
    return Part("What an attacker reconstructs", " ".join(words), strips=strips)


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
