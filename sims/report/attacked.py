"""Frontiers of what trained attacks reached, beside what needs no attack at all."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Literal

from matplotlib.figure import Figure

from sims.report.figures import Mark, draw_trade_off, start_axis_at_zero
from sims.report.summary import Summary
from sims.results.estimate import Estimate, estimate


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
    known = [(s, describe_candidates(s)) for s in summaries if s.picked.mean is not None]
    label = (to_percent(s.label_only) for s, count in known if count == s.choices)
    chance = (to_percent(1 / count) for _, count in known if count)
    marks = [*_anchor("chance", ":", chance), *_anchor("label only", "--", label)]
    marks = [mark._replace(right=mark.name == "label only") for mark in marks]
    figure = draw_trade_off(summaries, lambda s: to_percent_estimate(s.picked), marks)
    if figure is not None:
        start_axis_at_zero(figure)
        figure.axes[-1].set_xlabel("right image by the attack all met, % (less is better)")
    return figure


def describe_candidates(summary: Summary) -> int | None:
    """Return of how many images the worst attacks picked: of fewer where they rebuilt fewer.

    None where their runs differ in it, or nothing says it.
    """
    counts = {
        attack.identification_candidates or min(summary.choices, attack.targets or summary.choices)
        for run in summary.runs
        for attack in run.attacks
        if attack.attack in summary.worst and attack.identification_1 is not None
        if summary.choices is not None
    }
    return counts.pop() if len(counts) == 1 else None


def to_percent(share: float | None) -> float | None:
    """Return a share in percent."""
    return None if share is None else 100 * share


def to_percent_estimate(value: Estimate) -> Estimate:
    """Return the estimate of a share in percent."""
    mean, half, sd = (to_percent(one) for one in (value.mean, value.half, value.sd))
    return replace(value, mean=mean, half=half, sd=sd)


def _anchor(name: str, line: Literal["--", ":"], values: Iterable[float | None]) -> list[Mark]:
    """Return the line at the mean of what is known, if anything is."""
    mean = estimate(values).mean
    return [] if mean is None else [Mark(mean, name, line)]
