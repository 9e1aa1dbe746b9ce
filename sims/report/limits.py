"""What a report shows and what it does not, and how many seeds its numbers rest on."""

from collections import Counter
from collections.abc import Iterable, Sequence

from fedcel.attacks import ATTACKS
from sims.report.read import FinishedRun
from sims.report.summary import Summary
from sims.report.words import Verdict, describe_matching
from sims.results import MIN_SEEDS, REPEAT_MARK, FailedCell, estimate


def list_limits(
    summaries: Sequence[Summary],
    chosen: Verdict,
    failed: Sequence[FailedCell] = (),
    served: Iterable[str] = (),
) -> list[str]:
    """Return what the report shows and what it does not, one sentence group each.

    `served` are the names of attacks on a live service.
    """
    sizes = sorted({s.candidates for s in summaries if s.candidates is not None})
    caps = sorted({round(s.cap, 1) for s in summaries if s.cap is not None})
    found = []
    if chosen.best and chosen.compared > 1 and chosen.kind != "costs-too-much":
        by = (
            f"; {describe_matching(summaries)} accuracy decides which of them match"
            if chosen.base
            else ""
        )
        found.append(
            f"{chosen.best.label}, named at the top, is the best of {chosen.compared} variants "
            f"compared on the same test images, so its numbers are slightly optimistic{by}."
        )
    if sizes:
        cap = f" The most that could leak beyond the label is {_list(caps)} bits." if caps else ""
        found.append(
            "The optimal attacker sees what the encoder sends, not private answers. It is exact "
            f"for the M = {_list(sizes)} test images, up to Monte Carlo error: it knows the "
            "encoder and the law of the noise, and no attacker who sees the same tells these "
            f"images apart better.{cap} With more images the bits and their cap grow, so compare "
            "only at equal M."
        )
    found += _floor(chosen.best or chosen.base)
    known = {a.knowledge for s in summaries for run in s.runs for a in run.attacks} - {""}
    found += [_KNOWLEDGE[name] for name in sorted(known) if name in _KNOWLEDGE]
    found += [*_failures(failed), describe_seeds(summaries)]
    return [*found, *_untried(summaries, served), *_ALWAYS]


def _untried(summaries: Sequence[Summary], served: Iterable[str]) -> list[str]:
    """Name the attacks that exist and were run on nothing; averaged over repeats counts as run."""
    attacks = (a for s in summaries for run in s.runs for a in run.attacks if a.skipped is None)
    done = {a.attack.partition(REPEAT_MARK)[0] for a in attacks} | set(served)
    missing = [name for name in ATTACKS if name not in done]
    if not missing:
        return []
    return [
        f"Of the attacks that come with fedcel these were not run at all: {', '.join(missing)}. "
        "Any of them may reach further than those that were."
    ]


def _floor(told: Summary | None) -> list[str]:
    floor = estimate(run.result.answer_bits for run in told.runs).mean if told else None
    if told is None or floor is None:
        return []
    return [
        f"The answers of {told.label} alone tell {floor:.2f} bits beyond the label: "
        "no encoder whose answers follow the same law leaks less."
    ]


def _failures(failed: Sequence[FailedCell]) -> list[str]:
    if not failed:
        return []
    reasons = "; ".join(f"{one.cell} ({one.reason})" for one in failed)
    return [
        f"Failed, and so in no number, table or figure: {reasons}. The other seeds of a variant "
        "that failed are those that went well: its means flatter it."
    ]


def describe_seeds(summaries: Sequence[Summary]) -> str:
    """Say how many training seeds each variant has and what the intervals mean."""
    numbers = sorted({len(s.seeds) for s in summaries}) or [0]
    few = (
        "too few for an interval, so a small difference between variants means nothing. The ± of "
        "the decoder is the standard deviation over its runs only."
    )
    if len(numbers) == 1 and numbers[0] < MIN_SEEDS:
        return f"{_seeds(numbers[0], 'training ').capitalize()}: {few}"
    most = numbers.pop()
    fewer = [f"{s.label} with {_seeds(len(s.seeds))}" for s in summaries if len(s.seeds) < most]
    but = f", but {', '.join(fewer)}" if fewer else ""
    trained = f"Each variant was trained with {_seeds(most)}{but}"
    if most < MIN_SEEDS:
        return f"{trained}: {few}"
    none = (
        f"; fewer than {MIN_SEEDS} seeds have no interval"
        if numbers and numbers[0] < MIN_SEEDS
        else ""
    )
    return (
        f"{trained}; ± is the 95 % interval of the mean over them{none}, by Student's t, where "
        "each image's values were kept over the test images too; for the decoder it is the "
        "standard deviation over its runs."
    )


def _seeds(number: int, kind: str = "") -> str:
    return f"one {kind}seed" if number == 1 else f"{number} {kind}seeds"


def count_rejections(runs: Iterable[FinishedRun]) -> list[tuple[str, int]]:
    """Return each reason for which replies were left out, with how often, most frequent first."""
    return Counter(r.reason for run in runs for e in run.events for r in e.rejected).most_common()


_KNOWLEDGE = {
    "held-out": (
        "The trained attacks had a small held-out set, which neither the training nor the "
        "targets contain. Somebody with more images of the same kind does better."
    ),
    "training-size": (
        "The trained attacks were given the training images themselves, the strongest knowledge "
        "tested here; the targets are still test images that nobody saw."
    ),
}
_ALWAYS = (
    (
        "Only the variants in the table were tested. Of a narrower cut, dropout, distance "
        "correlation or adversarial training it says nothing where they are not in it."
    ),
    (
        "The numbers hold only while each device adds the noise it was measured with and sends "
        "the same image with the same noise. Less noise, or fresh noise on repeats, leaks more."
    ),
    (
        "A private answer protects the input of that query from whoever reads the answer, at the "
        "epsilon given, per query. By itself it protects neither the training data nor what the "
        "encoder sends."
    ),
    (
        "Private answers, and with them the inversion of their logits, take their noise from a "
        "secure generator that cannot be seeded: those numbers differ a little from run to run."
    ),
    "One data set and one network: on other images or a deeper cut the numbers differ.",
)


def _list(values: Sequence[float]) -> str:
    return " / ".join(f"{value:g}" for value in values)
