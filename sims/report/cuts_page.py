"""Page of compared cuts: one file, no network needed."""

from collections.abc import Mapping, Sequence
from io import BytesIO

import numpy as np
from jaxtyping import Float
from markupsafe import Markup
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox
from numpy.typing import NDArray
from torch import Tensor

from fedcel.leakage import CutComparison, LeakMaps, MeasuredCut, format_large
from sims.report.chart import COLOURS, INK, METADATA, STYLE, WIDTH, escape_label
from sims.report.cuts_table import tabulate_cuts
from sims.report.page import Part, inline_svg
from sims.report.reconstruction_strips import SENT, Strip, draw_leak_strips, limit_strips
from sims.report.templates import render_template

LEAST_AREA, MOST_AREA = 30.0, 500.0
"""Square points of the marks of the shortest and the longest message."""
LINEAR_BITS = 0.1
"""Bits below which the chart's axis is even."""
DECADE = 10
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
    unit, points = comparison.unit, comparison.limits.max_loss
    accuracy = comparison.accuracy_name
    parts = [
        Part(
            "Leak against operations on the device",
            "Down and left is better. The area of a mark grows with the bytes of a message. Filled "
            "marks are cuts for which no other leaks less at no more operations. Linearised bits "
            "and exact bits are different measures: compare cuts by the first, a cut and the "
            "answer alone by the second. Names that would cover others are left out.",
            plots=[(f"{unit} at the most noise that {accuracy} allows", draw_cuts(comparison))],
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
        (
            layer,
            [Strip("", "rebuilt", rebuilt.double().numpy())],
            leak_maps.information.numpy(),
            leak_maps.deviation.numpy(),
        )
        for layer, (rebuilt, leak_maps) in pictures.items()
    ]
    leak_strips, note = draw_leak_strips(encoders, maps[0].prior_deviation[None].numpy())
    strips = [Strip("", SENT, originals.double().numpy()), *leak_strips]
    words = [
        "Rebuilt by an attacker who owns the other images. “exposed” and “unknown” are those of "
        "the linearised channel.",
        note,
    ]
    if len(maps[0].deviation) < len(originals):
        words.append("Of images as large as these, they are drawn for the first only.")
    if not all(leak_maps.is_exact for leak_maps in maps):
        words.append(ROUGH_MAPS)
    return Part("What an attacker reconstructs", " ".join(words), strips=limit_strips(strips)[0])


def draw_cuts(comparison: CutComparison) -> Markup:
    """Draw linearised bits of the cuts, and exact bits of these and the answer, as SVG."""
    points = [*comparison.cuts, comparison.answer]
    roots = np.sqrt([cut.bytes for cut in points])
    areas = LEAST_AREA + (MOST_AREA - LEAST_AREA) * roots / roots.max()
    with rc_context(STYLE | {"svg.hashsalt": "cuts"}):
        figure = Figure(figsize=(WIDTH, 6.0), layout="constrained")
        panels = figure.subplots(2, sharex=True, height_ratios=(3, 2))
        panels[0].set_title(f"linearised {comparison.unit}", color=INK)
        exact = f"exact {comparison.unit}, of these {comparison.images} images"
        panels[1].set_title(exact, color=INK)
        measures: tuple[list[float | None], list[float | None]] = (
            [None if cut.linearised is None else cut.linearised.bits for cut in points],
            [cut.exact_bits for cut in points],
        )
        for axes, bits in zip(panels, measures, strict=True):
            for cut, value, area in zip(points, bits, areas, strict=True):
                if value is not None:
                    colour, fill = choose_colours(comparison, cut)
                    axes.scatter(
                        cut.macs, value, area, facecolor=fill, edgecolor=colour, alpha=0.75
                    )
            heights = [max(value, LINEAR_BITS) for value in bits if value is not None]
            if heights and max(heights) >= DECADE * min(heights):  # else the axis had no tick
                axes.set_yscale("symlog", linthresh=LINEAR_BITS)
            axes.margins(0.12, 0.18)
        panels[1].set_xlabel("operations on the device")
        panels[1].xaxis.set_major_formatter(lambda value, _: format_large(value))
        figure.draw_without_rendering()  # fixes the places of the names
        for axes, bits in zip(panels, measures, strict=True):
            name_cuts(axes, comparison, bits, areas)
        file = BytesIO()
        figure.savefig(
            file, format="svg", transparent=True, metadata=dict.fromkeys(METADATA["svg"])
        )
    return inline_svg(file.getvalue().decode())


def choose_colours(comparison: CutComparison, cut: MeasuredCut) -> tuple[str, str]:
    """Return the colours of a cut's edge and of its inside."""
    colour = COLOURS[1 if cut is comparison.recommended else 2 if cut.is_answer else 0]
    return colour, colour if cut in comparison.pareto else "none"


def name_cuts(
    axes: Axes,
    comparison: CutComparison,
    bits: Sequence[float | None],
    areas: NDArray[np.float64],
) -> None:
    """Name the marks of a panel, the recommended one and then others that matter first.

    A name that would cover an earlier one is left out.
    """
    points = [*comparison.cuts, comparison.answer]
    middle = (min(cut.macs for cut in points) + max(cut.macs for cut in points)) / 2
    order = sorted(
        (place for place, value in enumerate(bits) if value is not None),
        key=lambda place: (
            points[place] is not comparison.recommended,
            points[place] not in comparison.pareto,
        ),
    )
    boxes: list[Bbox] = []
    for place in order:
        cut, value = points[place], bits[place]
        # Deep cuts stand above each other: the name is beside the mark, within the axes.
        is_left, distance = cut.macs < middle, 4 + areas[place] ** 0.5 / 2
        name = axes.annotate(
            escape_label(cut.layer),
            (cut.macs, value),
            va="center",
            fontsize=9,
            color=INK,
            xytext=(distance if is_left else -distance, 0),
            textcoords="offset points",
            ha="left" if is_left else "right",
        )
        box = name.get_window_extent()
        if any(box.overlaps(other) for other in boxes):
            name.remove()
        else:
            boxes.append(box)
