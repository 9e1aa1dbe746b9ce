"""Summaries of a bench: the cells of one variant at one strength, with means and intervals."""

from dataclasses import dataclass, field

import numpy as np

from fedcel.metrics import is_at_chance
from fedcel.settings import burn_in_rounds
from sims.report.book import Book, FinishedRun
from sims.report.table import DASH
from sims.results.bench_rows import hold_to_common, hold_to_common_per_point
from sims.results.columns import ACCURACY, COLUMNS, Column, Measures
from sims.results.intervals import Estimate, crossed_interval, estimate, mean_samples, resample_rows
from sims.results.records import BenchRow, RunResult, attribute


@dataclass(frozen=True, eq=False)
class Summary:
    """Cells that differ in the training seed only: a row of the report's tables.

    Attributes:
        label: Name of the variant, with the strength where that tells two summaries apart.
        rows: Row of each cell, one or more, held to its worst attack.
        runs: Their runs.
        samples: Measures of the rows in bootstrap samples of the test images, the same samples in
            all summaries.
    """

    label: str
    rows: tuple[BenchRow, ...]
    runs: tuple[FinishedRun, ...]
    samples: Measures = field(default_factory=lambda: np.empty((0, 1, len(COLUMNS))))

    @property
    def row(self) -> BenchRow:
        """Row of the first cell, for what all cells share."""
        return self.rows[0]

    @property
    def variant(self) -> str:
        """Name of the variant in the scenario."""
        return self.row.variant

    @property
    def is_baseline(self) -> bool:
        """Whether others are compared with it: neither defended nor swept."""
        return self.row.undefended and self.row.strength is None

    @property
    def results(self) -> list[RunResult]:
        """Results of the runs."""
        return [run.result for run in self.runs]

    def measure(self, column: Column) -> Estimate:
        """Return mean and interval of a measure of the rows, or else of the runs' results.

        Where values of each test image were kept, the interval goes over images, too.
        """
        name = attribute(column.key)
        values = [
            getattr(run.result, name, None) if value is None else value
            for row, run in zip(self.rows, self.runs, strict=True)
            for value in [row.measure(column.key)]
        ]
        return crossed_interval(values, mean_samples(self.samples, column.key))

    def mean(self, column: Column) -> float | None:
        """Return the mean of a measure; None where it was not measured."""
        return self.measure(column).mean

    def measure_validation(self) -> float | None:
        """Return the accuracy on the validation set, mean over the rounds after burn-in.

        One round's accuracy on a small set moves by points.
        """
        return estimate(settled_accuracy(run) for run in self.runs if run.events).mean

    @property
    def worst_attacks(self) -> list[str]:
        """Names of the attacks that rebuilt images best, of all seeds."""
        return sorted({row.worst.attack for row in self.rows if row.worst})

    def name_worst(self) -> str:
        """Return the worst attacks, those cut short, and those that failed, which cannot be it."""
        failed = sorted({name for row in self.rows for name in row.failed_attacks})
        failures = [f"{', '.join(failed)} failed"] if failed else []
        stopped = sorted(
            {f"{w.attack} {w.stop_note}" for row in self.rows if (w := row.worst) and w.stop_note}
        )
        return " / ".join([*self.worst_attacks, *stopped, *failures]) or DASH

    @property
    def learned_nothing(self) -> bool:
        """Whether its accuracy cannot be told from a guess, so that its leak means nothing."""
        accuracy, result = self.mean(ACCURACY), self.results[0]
        if accuracy is None or result.chance_accuracy is None or not result.candidates:
            return False
        return is_at_chance(accuracy, result.candidates, result.chance_accuracy)


def settled_accuracy(run: FinishedRun) -> float | None:
    """Return the mean validation accuracy of the rounds after burn-in, or the last round's."""
    end = burn_in_rounds(run.settings)
    late = [event for event in run.events if event.round > end] or run.events[-1:]
    return estimate(event.accuracy for event in late).mean


def summarise_book(book: Book, common: bool = False) -> tuple[Summary, ...]:
    """Return one summary for each variant and strength, in the order of the rows.

    The worst attack is that of those that all seeds have met; with `common` that of those that all
    cells have met: curves join strengths, and a stronger attack at one alone would bend them.
    """
    points: dict[tuple[str, float | None], list[BenchRow]] = {}
    for row in (hold_to_common if common else hold_to_common_per_point)(book.rows):
        points.setdefault(row.point, []).append(row)
    variants = [variant for variant, _ in points]
    return tuple(
        Summary(
            f"{rows[0].name}, {strength:g}"
            if variants.count(variant) > 1 and strength is not None
            else rows[0].name,
            tuple(rows),
            tuple(book.runs[row.run] for row in rows),
            resample_rows(rows, book.images),
        )
        for (variant, strength), rows in points.items()
    )
