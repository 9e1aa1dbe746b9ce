"""Frontiers of what trained attacks reached, beside what needs no attack at all."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Literal

from matplotlib.figure import Figure

from sims.report.figures import Mark, draw_trade_off, start_axis_at_zero
from sims.report.summary import Summary
from sims.results import Estimate, estimate


def draw_mse_trade_off(summaries: Sequence[Summary]) -> Figure | None:
    """Draw accuracy (percent) against the worst attack's MSE; up and right is better."""
    marks = [
        *_anchor("label only", "--", (s.oracle_mse for s in summaries)),
        *_anchor("mean image", ":", (s.mean_mse for s in summaries)),
    ]
    figure = draw_trade_off(summaries, lambda s: s.mse, marks)
    if figure is not None:
        figure.axes[-1].locator_params(axis="x", nbins=6)  # four decimals each, side by side
        figure.axes[-1].set_xlabel("MSE of the worst attack that all met (more is better)")
    return figure


def draw_identification_trade_off(summaries: Sequence[Summary]) -> Figure | None:
    """Draw accuracy against how often the worst attack's image is nearest to its own original.

    Both in percent; up and left is better. The worst attack is that with the lowest MSE.
    """
    picked = [s for s in summaries if s.picked.mean is not None]
    label = (s.label_only for s in picked if s.picked_among == s.choices)
    chance = (1 / s.picked_among for s in picked if s.picked_among)
    marks = [*_anchor("chance", ":", chance, 100), *_anchor("label only", "--", label, 100)]
    marks = [mark._replace(right=mark.name == "label only") for mark in marks]
    figure = draw_trade_off(summaries, lambda s: to_percent(s.picked), marks)
    if figure is not None:
        start_axis_at_zero(figure)
        figure.axes[-1].set_xlabel("right image by the attack all met, % (less is better)")
    return figure


def to_percent(share: Estimate) -> Estimate:
    """Return the estimate of a share in percent."""
    mean, half, sd = (None if v is None else 100 * v for v in (share.mean, share.half, share.sd))
    return replace(share, mean=mean, half=half, sd=sd)


def _anchor(
    name: str, line: Literal["--", ":"], values: Iterable[float | None], scale: float = 1
) -> list[Mark]:
    """Return the line at the mean of what is known, if anything is."""
    mean = estimate(values).mean
    return [] if mean is None else [Mark(scale * mean, name, line)]
