"""The page of an audit: one file, no network needed."""

import numpy as np

from fedcel.attacks import Inversion
from fedcel.leakage import USELESS_BITS, Leakage
from sims.report.reconstruction_strips import Strip, encode_strip
from sims.report.table import DASH, Table, format_number, format_share, make_table
from sims.report.templates import render_template

SHOWN = 12  # images in a row


def render_audit(leak: Leakage, inversion: Inversion | None, title: str, conditions: str) -> str:
    """Return the page.

    Args:
        leak: The exact bits.
        inversion: What attacks rebuilt; None where none was run.
        title: Of the page.
        conditions: Which encoder on which images with what noise, in a sentence.

    Returns:
        HTML; texts are escaped.
    """
    bits = leak.bits_beyond_label if leak.has_classes else leak.information_bits
    cap = leak.cap_beyond_label if leak.has_classes else leak.cap_bits
    strips = [] if inversion is None else make_strips(inversion)
    return render_template(
        "report/audit.html.jinja",
        title=title,
        conditions=conditions,
        lines=str(leak).splitlines(),
        bar=100 * min(1.0, max(0.0, (bits or 0.0) / cap)) if cap else 0.0,
        bits=format_number(bits, 2),
        cap=format_number(cap, 1),
        measures=make_measures_table(leak),
        attacks=None if inversion is None else make_attacks_table(inversion),
        attack_lines=[] if inversion is None else str(inversion).splitlines(),
        strips=[(strip, encode_strip(strip)) for strip in strips],
    )


def make_measures_table(leak: Leakage) -> Table:
    """Return what was measured of all images."""
    rows = [
        (
            "bits about the image",
            format_number(leak.information_bits, 3),
            format_number(leak.information_half_width, 3),
            format_number(leak.certificate_bits, 3),
            format_limit(leak.population_bits),
            format_number(leak.cap_bits, 2),
        ),
        (
            f"right image of {leak.identification_candidates}, %",
            format_share(leak.identification),
            format_share(leak.identification_half_width),
            DASH,
            DASH,
            "100.0",
        ),
    ]
    if leak.has_classes:
        rows.insert(
            1,
            (
                "bits beyond the label",
                format_number(leak.bits_beyond_label, 3),
                format_number(leak.beyond_label_half_width, 3),
                format_number(leak.certificate_beyond_label, 3),
                format_limit(leak.population_beyond_label),
                format_number(leak.cap_beyond_label, 2),
            ),
        )
    head = ("", "measured", "±", "certificate", "unseen images", "at most")
    return make_table("What leaks", head, rows)


def format_limit(limit: float | None) -> str:
    """Return a limit for unseen images, or that it is none of use."""
    return "none of use" if (limit or 0) > USELESS_BITS else format_number(limit, 3)


def make_attacks_table(inversion: Inversion) -> Table:
    """Return the score card of every attack, above what needs no message."""
    rows = [
        (
            name,
            format_number(scores.mse, 4),
            format_number(scores.psnr, 1),
            format_number(scores.ssim, 3),
            format_share(scores.identification_1),
        )
        for name, scores in inversion.scores.items()
    ]
    first = next(iter(inversion.scores.values()))
    rows += [
        ("label only (class means)", format_number(first.oracle_mse, 4), DASH, DASH, DASH),
        ("nothing (mean image)", format_number(first.mean_mse, 4), DASH, DASH, DASH),
    ]
    return make_table("Attacks", ("attack", "MSE", "PSNR, dB", "SSIM", "right image, %"), rows)


def make_strips(inversion: Inversion) -> list[Strip]:
    """Return originals and what each attack made of them."""
    images = {"originals": inversion.targets, **inversion.reconstructions}
    return [
        Strip("", name, np.asarray(rebuilt[:SHOWN].numpy(), np.float64))
        for name, rebuilt in images.items()
    ]
