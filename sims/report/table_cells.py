"""Cells of measures, the same in every table."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from sims.report.number_format import DASH, format_interval
from sims.report.summary import Summary
from sims.results import (
    BITS,
    IDENTIFICATION,
    MSE,
    Column,
    Estimate,
    Measures,
    crossed_interval,
    estimate,
    mean_samples,
)


def format_estimate(column: Column, value: Estimate) -> str:
    """Return mean and interval as the column shows them."""
    return format_interval(value, column.digits, column.scale)


def format_crossed(
    column: Column, seeds: Iterable[float | None], images: Iterable[float | None] = ()
) -> str:
    """Return the mean over seeds and its interval over seeds and images (`crossed_interval`)."""
    return format_estimate(column, crossed_interval(seeds, images))


def format_means(
    columns: Iterable[Column],
    rows: Sequence[Measures],
    samples: Sequence[Sequence[Measures]] = (),
) -> list[str]:
    """Return a cell for each column: mean over rows, with its interval.

    `samples` are the rows in bootstrap samples of the test images.
    """
    return [
        format_crossed(c, (row.get(c.key) for row in rows), mean_samples(samples, c.key))
        for c in columns
    ]


class Anchor(NamedTuple):
    """What one reaches who gets no message: no bits beyond the label, by definition."""

    name: str
    identification: float | None
    mse: float | None

    def format_cells(self, columns: Iterable[Column]) -> list[str]:
        """Return a cell for each column."""
        values = {
            BITS.key: 0.0,
            IDENTIFICATION.key: self.identification,
            MSE.key: self.mse,
        }
        return [
            format_estimate(c, Estimate(values[c.key])) if c.key in values else DASH
            for c in columns
        ]


def find_anchors(
    *,
    label_only: Iterable[float | None],
    choices: Iterable[int | None],
    oracle_mse: Iterable[float | None],
    mean_mse: Iterable[float | None],
) -> tuple[Anchor, Anchor]:
    """Return the anchors of a table: who knows the label alone, and who knows nothing.

    Args:
        label_only: How often the label alone identifies an image, of each row.
        choices: Among how many images it is looked for.
        oracle_mse: Error of the mean image of the right class.
        mean_mse: Error of the mean image.
    """
    chance = (1 / count if count else None for count in choices)
    return (
        Anchor("label only (class means)", estimate(label_only).mean, estimate(oracle_mse).mean),
        Anchor("nothing (mean image)", estimate(chance).mean, estimate(mean_mse).mean),
    )


def find_summary_anchors(summaries: Sequence[Summary]) -> tuple[Anchor, Anchor]:
    """Return the anchors of a table of summaries."""
    return find_anchors(
        label_only=(summary.label_only for summary in summaries),
        choices=(summary.choices for summary in summaries),
        oracle_mse=(summary.oracle_mse for summary in summaries),
        mean_mse=(summary.mean_mse for summary in summaries),
    )
