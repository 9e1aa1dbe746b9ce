"""Summaries of a bench: the cells of one variant at one strength, with means and intervals."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from torch import Tensor

from fedcel.attacks import AttackRow
from fedcel.metrics import is_at_chance
from fedcel.settings import Settings, burn_in_rounds
from sims.report.table import DASH
from sims.results.columns import ACCURACY, POSITIONS, Column
from sims.results.intervals import Estimate, estimate, estimate_samples
from sims.results.records import BenchRow, RoundEvent, RunResult, attribute

Images = Float[np.ndarray, "N C H W"]


@dataclass(frozen=True)
class FinishedRun:
    """All that the report shows of one run folder."""

    settings: Settings
    events: Sequence[RoundEvent]
    result: RunResult
    attacks: Sequence[AttackRow]
    images: Mapping[str, Images]
    """Originals, class means and reconstructions."""
    guesses: Mapping[str, Tensor]
    """The optimal attacker's at a few messages."""


@dataclass(frozen=True, eq=False)
class Summary:
    """Cells that differ in the training seed only: a row of the report's tables.

    Attributes:
        label: Name of the variant, with the strength where that tells two summaries apart.
        rows: Row of each cell, one or more, held to its worst attack.
        runs: Their runs.
        measured: Measures of the rows, and the same in bootstrap samples of the test images, the
            same samples in all summaries.
    """

    label: str
    rows: Sequence[BenchRow]
    runs: Sequence[FinishedRun]
    measured: Float[np.ndarray, "S R K"]

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
        """Return mean and interval of a measure of the rows, or else of the runs' results."""
        if column.key in POSITIONS:
            values = self.measured[..., POSITIONS[column.key]]
            if not np.isnan(values[0]).all():
                return estimate_samples(values)
        name = attribute(column.key)
        return estimate(getattr(result, name, None) for result in self.results)

    def mean(self, column: Column) -> float | None:
        """Return the mean of a measure; None where it was not measured."""
        return self.measure(column).mean

    def measure_validation(self) -> float | None:
        """Return the accuracy on the validation set, mean over the rounds after burn-in.

        One round's accuracy on a small set moves by points. The last round counts where none is
        after burn-in.
        """
        means = []
        for run in self.runs:
            end = burn_in_rounds(run.settings)
            late = [event for event in run.events if event.round > end] or run.events[-1:]
            means.append(estimate(event.accuracy for event in late).mean)
        return estimate(means).mean

    @property
    def worst_attacks(self) -> list[str]:
        """Names of the attacks that rebuilt images best, of all seeds."""
        return sorted({row.worst.attack for row in self.rows if row.worst})

    def name_worst(self) -> str:
        """Return the worst attacks, those cut short, and those that failed, which cannot be it."""
        worst = [row.worst for row in self.rows if row.worst]
        stopped = {f"{attack.attack} {attack.stop_note}" for attack in worst if attack.stop_note}
        failed = {f"{name} failed" for row in self.rows for name in row.failed_attacks}
        return " / ".join([*self.worst_attacks, *sorted(stopped), *sorted(failed)]) or DASH

    @property
    def learned_nothing(self) -> bool:
        """Whether its accuracy cannot be told from a guess, so that its leak means nothing."""
        accuracy, result = self.mean(ACCURACY), self.results[0]
        if accuracy is None or result.chance_accuracy is None or not result.candidates:
            return False
        return is_at_chance(accuracy, result.candidates, result.chance_accuracy)
