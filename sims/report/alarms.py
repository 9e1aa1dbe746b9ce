"""Where a run's attacks, or its result, contradict each other: a number on the page is wrong."""

from collections.abc import Iterable

from fedcel.attacks import AttackRow, MeasuredLeak, find_contradictions
from sims.report.records import Attack, Result
from sims.report.summary import Summary


def find_alarms(summaries: Iterable[Summary]) -> list[str]:
    """Return what cannot be, with the run in which it is; nothing where all numbers agree."""
    return [
        f"{s.label}, training seed {seed}: {sentence}"
        for s in summaries
        for seed, run in zip(s.seeds, s.runs, strict=True)
        for sentence in find_run_contradictions(run.attacks, run.result)
    ]


def find_run_contradictions(attacks: Iterable[Attack], result: Result | None = None) -> list[str]:
    """Return a sentence for each contradiction in a run's attacks and in its result.

    Whenever each attack was made.
    """
    rows = [AttackRow.from_dict(attack.model_dump(by_alias=True)) for attack in attacks]
    leak = None if result is None else MeasuredLeak.model_validate(result.model_dump(by_alias=True))
    return find_contradictions(rows, leak)
