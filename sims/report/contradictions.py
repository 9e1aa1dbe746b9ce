"""Where a run's attacks, or its result, contradict each other: a number on the page is wrong."""

from collections.abc import Iterable

from fedcel.attacks import find_contradictions
from sims.report.summary import Summary


def find_alarms(summaries: Iterable[Summary]) -> list[str]:
    """Return what cannot be, with the run in which it is; nothing where all numbers agree."""
    return [
        f"{summary.label}, training seed {seed}: {sentence}"
        for summary in summaries
        for seed, run in zip(summary.seeds, summary.runs, strict=True)
        for sentence in find_contradictions(run.attacks, run.result)
    ]
