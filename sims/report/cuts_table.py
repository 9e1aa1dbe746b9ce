"""Tables of compared cuts, for the terminal and the page."""

from collections.abc import Mapping

from fedcel.leakage import CutComparison, LinearisedLeak, MeasuredCut, format_large
from sims.report.table import DASH, NO_MESSAGE, Table, format_number, make_table

SHARES = ("accuracy, %", "agreement, %")
TERMINAL = ("cut", "bytes", "operations", "ms", "noise, rms", *SHARES, "bits", "exact bits", "MSE")
"""Columns that a terminal has room for."""


def tabulate_cuts(
    comparison: CutComparison, attacks: Mapping[str, float], *, is_narrow: bool = False
) -> Table:
    """Return a row for each cut, the answer alone, and an attacker without a message.

    `attacks` are the squared errors of the attack's images, by layer; a terminal has room for a
    narrow table.
    """
    rows = [list_cells(comparison, cut, attacks) for cut in (*comparison.cuts, comparison.answer)]
    head = [name for name in rows[0] if not is_narrow or name in TERMINAL]
    anchor = {"cut": f"*{NO_MESSAGE}*", "MSE": format_number(comparison.prior_mse, 4)}
    if comparison.has_classes:
        anchor["cut"] = "*label only*"
    rows.append({name: anchor.get(name, DASH) for name in head})
    return make_table("Cuts", head, [[row[name] for name in head] for row in rows])


def list_cells(
    comparison: CutComparison, cut: MeasuredCut, attacks: Mapping[str, float]
) -> dict[str, str]:
    """Return the cells of a cut by the heads of their columns."""
    leak, linearised = cut.leak, cut.linearised
    exact = leak.bits_beyond_label, leak.beyond_label_half_width, leak.cap_beyond_label
    unseen = leak.population_beyond_label
    if not comparison.has_classes:
        exact = leak.information_bits, leak.information_half_width, leak.cap_bits
        unseen = leak.population_bits
    cells = {
        "cut": mark_cut(comparison, cut),
        "values": DASH if cut.is_answer else "x".join(map(str, cut.shape)),
        "bytes": format_large(cut.bytes),
        "operations": format_large(cut.macs),
        "parameters": format_large(cut.parameters),
        "ms": f"{cut.milliseconds:.2g}",
        "noise, rms": DASH if cut.is_answer else f"{cut.noise / cut.rms:.3f}",
    }
    if comparison.limits.has_leak:
        least = cut.noise_for_leak
        cells["least noise, rms"] = DASH if least is None else f"{least / cut.rms:.3f}"
    cells |= {
        f"{comparison.accuracy_name}, %": format_number(100 * cut.accuracy, 1),
        "bits": DASH
        if linearised is None
        else f"{linearised.bits:.1f} ± {linearised.bits_uncertainty:.1f}",
        "exact bits": f"{exact[0]:z.2f} of {exact[2]:.2f}",
        "unseen images": DASH if unseen is None else format_large(unseen),
        "MSE": DASH if linearised is None else format_error(linearised),
        "attack's MSE": format_number(attacks.get(cut.layer), 4),
    }
    return cells


def mark_cut(comparison: CutComparison, cut: MeasuredCut) -> str:
    """Return a cut's name behind the mark of the recommended one, or of a good one."""
    if cut is comparison.recommended:
        return f"→ {cut.layer}"
    return f"· {cut.layer}" if cut in comparison.pareto else cut.layer


def format_error(linearised: LinearisedLeak) -> str:
    """Return the squared error, with an interval where Lanczos' method estimates it."""
    interval = f" ± {linearised.mmse_uncertainty:.4f}" if linearised.mmse_error else ""
    return f"{linearised.mmse:.4f}{interval}"
