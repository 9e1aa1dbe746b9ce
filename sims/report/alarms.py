"""Where the attacks on one run contradict each other, so that a number on the page is wrong."""

from collections.abc import Iterable, Sequence

from fedcel.attacks import defects
from sims.report.records import Attack
from sims.report.summary import Summary
from sims.worst import Who

Row = dict[str, object]


def alarms(summaries: Iterable[Summary]) -> list[str]:
    """Return what cannot be, with the run in which it is; nothing where all numbers agree."""
    return [
        f"{s.label}, training seed {seed}: {sentence}"
        for s in summaries
        for seed, run in zip(s.seeds, s.runs, strict=True)
        for sentence in contradictions(run.attacks)
    ]


def contradictions(attacks: Sequence[Attack]) -> list[str]:
    """Return a sentence for each contradiction in a run's attacks, whenever each was made.

    Each attack is held against the optimal one as it was carried out: the mean over several
    budgets, or over what the attacker knows, would hide that one of them cannot be. Rows of
    versions that stored too little for this are left out.
    """
    best = [_row(attack) for attack in attacks if _known(attack, BEST)]
    trained: dict[Who, list[Row]] = {}
    for attack in attacks:
        if _known(attack, TRAINED):
            trained.setdefault(attack.who, []).append(_row(attack))
    found = [defects(best), *(defects([*best, *rows]) for rows in trained.values())]
    return list(dict.fromkeys(sentence for sentences in found for sentence in sentences))


BEST = (
    "identification_optimal",
    "identification_half_width",
    "identification_candidates",
    "candidates",
    "information_bits",
)
"""What the optimal attacker's row must say to be checked."""
TRAINED = ("identification_1", "targets")
"""What a trained attack's row must say."""


def _known(attack: Attack, keys: Iterable[str]) -> bool:
    return all(getattr(attack, key) is not None for key in keys)


def _row(attack: Attack) -> Row:
    return attack.model_dump(by_alias=True, exclude_none=True)
