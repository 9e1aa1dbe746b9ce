"""What a report shows and what it does not, and how many seeds its numbers rest on."""

from collections import Counter
from collections.abc import Iterable, Sequence

from fedcel.attacks import ATTACKS, REPEAT_MARK
from sims.report.book import FinishedRun
from sims.report.summary import Summary
from sims.report.verdict import Verdict, describe_matching
from sims.results import MIN_SEEDS, FailedCell, estimate


def list_limits(
    summaries: Sequence[Summary],
    verdict: Verdict,
    failed: Sequence[FailedCell] = (),
    served: Iterable[str] = (),
) -> list[str]:
    """Return what the report shows and what it does not, one sentence group each.

    `served` are the names of attacks on a live service.
    """
    sizes = sorted({s.candidates for s in summaries if s.candidates is not None})
    caps = sorted({round(s.cap, 1) for s in summaries if s.cap is not None})
    limits = []
    if verdict.best and verdict.compared > 1 and verdict.kind != "costs-too-much":
        text = (
            f"{verdict.best.label}, named at the top, is the best of {verdict.compared} variants "
            "compared on the same test images. So its numbers are slightly optimistic."
        )
        if verdict.base:
            text += f" The {describe_matching(summaries)} accuracy decides which of them match."
        limits.append(text)
    if sizes:
        most = f" At most {join_numbers(caps)} bits could leak beyond the label." if caps else ""
        limits.append(
            "The optimal attacker sees what the encoder sends, not private answers. It knows the "
            "encoder and the law of the noise. No attacker who sees the same tells these images "
            f"apart better. It is exact for the M = {join_numbers(sizes)} test images, up to Monte "
            f"Carlo error.{most} With more images the bits and their cap grow, so compare only at "
            "equal M."
        )
    featured = verdict.best or verdict.base
    floor = estimate(run.result.answer_bits for run in featured.runs).mean if featured else None
    if featured is not None and floor is not None:
        limits.append(
            f"The answers of {featured.label} alone tell {floor:.2f} bits beyond the label: "
            "no encoder whose answers follow the same law leaks less."
        )
    notes = dict.fromkeys(n for s in summaries for run in s.runs for n in run.result.data_notes)
    if notes:
        limits.append(f"What was done to the images first: {'; '.join(notes)}.")
    attacks = [attack for s in summaries for run in s.runs for attack in run.attacks]
    knowledge = {attack.knowledge for attack in attacks}
    limits += [text for name, text in KNOWLEDGE_LIMITS.items() if name in knowledge]
    if failed:
        reasons = "; ".join(f"{failure.cell} ({failure.reason})" for failure in failed)
        limits.append(
            f"Failed, and so in no number, table or figure: {reasons}. The other seeds of a "
            "variant that failed are those that went well: its means flatter it."
        )
    limits.append(describe_seeds(summaries))
    tried = {a.attack.partition(REPEAT_MARK)[0] for a in attacks if a.skipped is None} | set(served)
    untried = [name for name in ATTACKS if name not in tried]  # one averaged over repeats was tried
    if untried:
        limits.append(
            "Of the attacks that come with fedcel these were not run at all: "
            f"{', '.join(untried)}. Any of them may reach further than those that were."
        )
    unrepeatable = {str(r.result.unrepeatable) for s in summaries for r in s.runs} - {"None"}
    limits += [f"The same seed may give another model. {why}." for why in sorted(unrepeatable)]
    return [*limits, *STANDING_LIMITS]


def describe_seeds(summaries: Sequence[Summary]) -> str:
    """Say how many training seeds each variant has and what the intervals mean."""
    numbers = sorted({len(s.seeds) for s in summaries}) or [0]
    few = (
        "too few for an interval. So a small difference between variants means nothing. The ± of "
        "the decoder is the standard deviation over its runs only."
    )
    if len(numbers) == 1 and numbers[0] < MIN_SEEDS:
        return f"{count_seeds(numbers[0], 'training ').capitalize()}: {few}"
    most = numbers.pop()
    fewer = [
        f"{s.label} with {count_seeds(len(s.seeds))}" for s in summaries if len(s.seeds) < most
    ]
    exceptions = f", but {', '.join(fewer)}" if fewer else ""
    trained = f"Each variant was trained with {count_seeds(most)}{exceptions}"
    if most < MIN_SEEDS:
        return f"{trained}: {few}"
    text = f"{trained}. The ± is the 95 % interval of the mean over seeds, by Student's t."
    if numbers and numbers[0] < MIN_SEEDS:
        text += f" Fewer than {MIN_SEEDS} seeds have no interval."
    return (
        f"{text} Where each image's values were kept, it goes over the test images, too. For the "
        "decoder, ± is the standard deviation over its runs."
    )


def count_seeds(number: int, kind: str = "") -> str:
    """Return "one seed" or "3 seeds", of a kind."""
    return f"one {kind}seed" if number == 1 else f"{number} {kind}seeds"


def describe_left_out(runs: Iterable[FinishedRun]) -> str:
    """Say in how many rounds clients were left out, and how much was kept; empty for none."""
    events = [run.events for run in runs]
    rounds = [event for of_run in events for event in of_run]
    incomplete = sum(bool(event.rejected) for event in rounds)
    if not incomplete:
        return ""
    mean = sum(event.share for event in rounds) / len(rounds)
    least = min(event.share for event in rounds)
    several = f" of {len(events)} runs" if len(events) > 1 else ""
    return (
        f"Clients were left out in {incomplete} of {len(rounds)} rounds{several}: {mean:.1%} of "
        f"the clients' weight was kept on average, {least:.1%} in the worst round."
    )


def count_rejections(runs: Iterable[FinishedRun]) -> list[tuple[str, int]]:
    """Return each reason for which replies were left out, with how often, most frequent first."""
    return Counter(r.reason for run in runs for e in run.events for r in e.rejected).most_common()


KNOWLEDGE_LIMITS = {
    "held-out": (
        "The trained attacks had a small held-out set, which neither the training nor the "
        "targets contain. Somebody with more images of the same kind does better."
    ),
    "training-size": (
        "The trained attacks were given the training images themselves, the strongest knowledge "
        "tested here. The targets are still test images that nobody saw."
    ),
}
STANDING_LIMITS = (
    (
        "Only the variants in the table were tested. Nothing is shown about a narrower cut, "
        "dropout, distance correlation or adversarial training where they are not in it."
    ),
    (
        "The numbers hold only while each device adds the noise it was measured with and sends "
        "the same image with the same noise. Less noise, or fresh noise on repeats, leaks more."
    ),
    (
        "A private answer protects the input of that query from those who read the answer, at the "
        "epsilon given for each query. By itself it protects neither the training data nor what "
        "the encoder sends."
    ),
    (
        "Private answers take their noise from a secure generator that cannot be seeded. So their "
        "numbers, and those of the inversion of their logits, differ a little from run to run."
    ),
    "This is one data set and one network. On other images or a deeper cut the numbers differ.",
)


def join_numbers(values: Sequence[float]) -> str:
    """Return the numbers with slashes between them."""
    return " / ".join(f"{value:g}" for value in values)
