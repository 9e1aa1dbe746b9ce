"""Page of an audit: one file, no network needed."""

from collections.abc import Mapping, Sequence

from jaxtyping import Float
from torch import Tensor

from fedcel.attacks import Inversion, ReconstructionScores
from fedcel.leakage import (
    MEASURE_NAMES,
    MEASURE_WORDS,
    USELESS_BITS,
    Leakage,
    LeakMaps,
    LinearisedLeak,
)
from fedcel.metrics import round_up
from sims.report.reconstruction_strips import (
    SENT,
    Strip,
    draw_leak_strips,
    make_image_strips,
)
from sims.report.table import (
    DASH,
    LABEL_ONLY,
    NO_LIMIT,
    NO_MESSAGE,
    Table,
    format_number,
    make_anchor,
    make_table,
    measure_records,
    tabulate,
)
from sims.report.tables import tabulate_sequences
from sims.report.templates import render_template
from sims.results.columns import MSE, find_columns

SHOWN = 12  # images in a row


def render_audit(
    leak: Leakage,
    inversion: Inversion | None,
    title: str,
    conditions: str,
    *,
    lines: Sequence[str],
    target_names: Sequence[str] = (),
    maps: LeakMaps | None = None,
    mapped: Float[Tensor, "T C H W"] | None = None,
) -> str:
    """Render the page as HTML.

    `conditions` names encoder, images and noise in a sentence, `lines` say what leaks, the most
    important first; `target_names` are the classes of the images that are rebuilt, `mapped` the
    images of `maps`.
    """
    bits = leak.bits_beyond_label if leak.has_classes else leak.information_bits
    cap = leak.cap_beyond_label if leak.has_classes else leak.cap_bits
    strips: list[Strip] = []
    if inversion is not None:
        images = {"originals": inversion.targets, **inversion.reconstructions}
        strips = make_image_strips(images, SHOWN)
        strips[0] = strips[0]._replace(notes=target_names[:SHOWN])
    map_strips, maps_note = draw_leak_strips({} if maps is None else {"": maps})
    if mapped is not None:
        map_strips = make_image_strips({SENT: mapped}) + map_strips
    linearised = leak.linearised
    return render_template(
        "report/audit.html.jinja",
        title=title,
        versions="",
        conditions=conditions,
        lines=lines,
        share=(bits or 0.0) / cap if cap else 0.0,
        bits=format_number(bits, 2),
        cap=format_number(cap, 2),
        measures=make_measures_table(leak),
        maps=map_strips,
        maps_note=maps_note,
        pictures=[]
        if linearised is None
        else [make_picture_table(linearised), tabulate_sequences({"": [linearised.sequences]})],
        strips=strips,
        attacks=[] if inversion is None else [make_attacks_table(inversion.scores)],
        inversion=inversion,
    )


def make_picture_table(linearised: LinearisedLeak) -> Table:
    """Return each number with its interval, the estimate's error included, and what it is."""
    values = {
        "bits": (linearised.bits, linearised.bits_uncertainty, 1),
        "mmse": (linearised.mmse, linearised.mmse_uncertainty, 4),
        "psnr": (linearised.psnr, linearised.psnr_half_width, 1),
        "bound": (linearised.bound, linearised.bound_half_width, 4),
        "dfil": (linearised.dfil, linearised.dfil_half_width, 2),
        "fsinfo": (linearised.fsinfo, linearised.fsinfo_half_width, 3),
    }
    rows = [
        [
            MEASURE_NAMES[key],
            MEASURE_WORDS[key],
            format_number(value, digits),
            round_up(half_width, digits),
        ]
        for key, (value, half_width, digits) in values.items()
    ]
    return make_table("How much of the picture", ("", "meaning", "estimate", "±"), rows, words=2)


def make_measures_table(leak: Leakage) -> Table:
    """Return the leak measured of all images, with its limits."""
    measures: dict[str, tuple[float | None, ...]] = {
        "bits about the image": (
            *(leak.information_bits, leak.information_half_width, leak.certificate_bits),
            *(leak.population_bits, leak.cap_bits),
        )
    }
    if leak.has_classes:
        measures["bits beyond the label"] = (
            *(leak.bits_beyond_label, leak.beyond_label_half_width, leak.certificate_beyond_label),
            *(leak.population_beyond_label, leak.cap_beyond_label),
        )
    rows = [
        [
            *(name, *(format_number(value, 3) for value in values)),
            NO_LIMIT if (unseen or 0) > USELESS_BITS else format_number(unseen, 3),
            format_number(cap, 2),
        ]
        for name, (*values, unseen, cap) in measures.items()
    ]
    right = f"right image of {leak.identification_candidates}, %"
    shares = (leak.identification, leak.identification_half_width)
    percents = (format_number(None if share is None else 100 * share, 1) for share in shares)
    rows.append([right, *percents, DASH, DASH, "100.0"])
    head = ("", "measured", "±", "certificate", "unseen images", "at most")
    return make_table("What leaks", head, rows)


def make_attacks_table(scores: Mapping[str, ReconstructionScores]) -> Table:
    """Return the score card of every attack, above the errors of guesses without a message."""
    first = next(iter(scores.values()))
    lines = [measure_records((name,), [score]) for name, score in scores.items()]
    lines += [
        make_anchor(LABEL_ONLY, {MSE.key: first.oracle_mse}),
        make_anchor(NO_MESSAGE, {MSE.key: first.mean_mse}),
    ]
    columns = [MSE.titled("MSE"), *find_columns("psnr", "ssim", "identification-1")]
    return tabulate("Attacks", ["attack"], columns, lines)
