"""What the numbers say, in plain words; the wording follows the numbers."""

import math
from collections.abc import Sequence
from statistics import fmean
from typing import Literal, NamedTuple

from sims.report.summary import Summary
from sims.results.intervals import MIN_SEEDS, Estimate, crossed_interval

MATCHED_POINTS = 2.0  # of accuracy that a defence may cost and still count as matched
NO_DIFFERENCE = 0.05  # a smaller share of the undefended leak is called no difference
LITTLE_HELP = 0.25  # a smaller share is called a little
CAP_TOLERANCE = 0.005  # bits this near to the cap are all of them, to the two decimals shown
WEAK_ATTACK = 1.15  # MSE this many times that of label-only knowledge: weak attack or dead model
PERCENT = "\N{NO-BREAK SPACE}%"

COPY_MSE = 1e-4  # of pixels in [0, 1]: a reconstruction this near is the image
FIRST_LAYER_ATTACK = "first-layer"

VerdictKind = Literal[
    "helps",
    "helps-little",
    "does-not-help",
    "costs-too-much",
    "no-baseline",
    "alone",
    "nothing-learned",
]
MatchedOn = Literal["validation", "test"]


class Verdict(NamedTuple):
    """The headline and the two summaries it compares (`base`: undefended).

    `compared` is the number of defended variants that `best` was chosen among.
    """

    kind: VerdictKind
    headline: str
    base: Summary | None
    best: Summary | None
    compared: int = 0


def find_verdict(summaries: Sequence[Summary]) -> Verdict:
    """Compare the first variant that defends and sweeps nothing with the best defended one.

    The best leaks the fewest bits beyond the label within 2 points of accuracy: on the
    validation set, or on the test set where a run has no validation accuracy.
    """
    base = next((s for s in summaries if s.undefended and s.strength is None), None)
    defended = [s for s in summaries if not s.undefended and s.bits.mean is not None]
    useful = [s for s in defended if not s.learned_nothing]
    if base is not None and base.learned_nothing:
        verdict = judge_untrained(base)
    elif base is None and defended and not useful:
        verdict = judge_untrained(max(defended, key=lambda s: s.accuracy.mean or 0.0))
    elif base is None or base.bits.mean is None:
        best = min(useful, key=mean_bits, default=None)
        verdict = judge_without_base(best, is_alone=len(summaries) == 1)
    elif not defended:
        start = "Only the undefended model was measured:"
        if sum(s.undefended for s in summaries) > 1:
            start = f"Only undefended models were measured. With {base.label},"
        verdict = Verdict("alone", describe_leak(start, base), base, None)
    else:
        on = describe_matching(summaries)
        matched = [s for s in useful if accuracy_cost(base, s, on) <= MATCHED_POINTS + 1e-9]
        if matched:
            verdict = judge_matched(base, min(matched, key=mean_bits))
        else:
            nearest = min(defended, key=lambda s: accuracy_cost(base, s, on))
            verdict = judge_too_dear(base, nearest, on)
    return verdict._replace(compared=len(defended))


def describe_in_one_sentence(verdict: Verdict) -> str:
    """Return the verdict as the one sentence that a reader takes away."""
    base, best = verdict.base, verdict.best
    if verdict.kind == "nothing-learned":
        return "Nothing was learned, so this leak means nothing."
    shown = best or base
    if shown is None:
        return verdict.headline
    if base is None or best is None:
        return describe_leak(f"{shown.label}:", shown)
    if verdict.kind == "costs-too-much":
        return (
            f"Every defence costs more than {MATCHED_POINTS:g} points of accuracy: the nearest, "
            f"{best.label}, costs {accuracy_cost(base, best, describe_matching([base, best])):.1f}."
        )
    starts = {"does-not-help": "No defence helps: w", "helps-little": "The defence helps little: w"}
    start = f"{starts.get(verdict.kind, 'W')}ith {best.label}"
    bits = f"{mean_bits(best):z.2f} bits beyond the label leak instead of {mean_bits(base):z.2f}"
    before, after = base.identification.mean, best.identification.mean
    if before is None or after is None:
        return f"{start}, {bits}; {describe_price(base, best)}."
    picked = f"one of {best.choices} images" if best.choices else "image"
    return (
        f"{start}, the best possible attacker picks the right {picked} in "
        f"{format_whole_percent(after)} of cases instead of {format_whole_percent(before)} "
        f"({bits}); {describe_price(base, best)}."
    )


def judge_untrained(summary: Summary) -> Verdict:
    """Say that a model cannot be told from a guess, so that its leak means nothing."""
    text = (
        f"Nothing was learned: {summary.label} classifies {format_percent(summary.accuracy)} of "
        f"{summary.candidates} test images correctly, which cannot be told from a guess "
        f"({100 * (summary.chance or 0.0):.1f}{PERCENT}). So its leak means nothing, however small "
        "it is: train longer or at another rate (too small a one learns nothing, too large a one "
        "diverges), or lower the noise or the weight of the loss."
    )
    return Verdict("nothing-learned", text, summary, None)


def describe_matching(summaries: Sequence[Summary]) -> MatchedOn:
    """Return on which images accuracy is matched: validation, if all were scored there."""
    return "validation" if all(s.validation.mean is not None for s in summaries) else "test"


def judge_without_base(best: Summary | None, is_alone: bool) -> Verdict:
    """Say what leaks where there is no undefended model to compare with."""
    kind: VerdictKind = "alone" if is_alone else "no-baseline"
    if best is None:
        text = "The bits that leak beyond the label were not measured, so there is no verdict."
        return Verdict(kind, text, None, None)
    count = f"{best.candidates} " if best.candidates else "the "
    right = f"{format_percent(best.accuracy)} of {count}test images"
    if is_alone:
        text = describe_leak(f"This model classifies {right} correctly, and", best)
    else:
        least = describe_leak(f"The least leaks with {best.label}:", best)
        text = (
            "There is no undefended variant to compare with (no cel.kind, no defence.name, nothing "
            "swept). So these numbers do not show what a defence gains. "
            f"{least} It classifies {right} correctly."
        )
    return Verdict(kind, text, None, best)


def judge_too_dear(base: Summary, nearest: Summary, on: MatchedOn) -> Verdict:
    """Say that every defence costs too much accuracy, and what the nearest one brings."""
    parts = [
        f"No defence stayed within {MATCHED_POINTS} points of the undefended {on} accuracy, "
        f"{format_percent(accuracy_on(base, on))}.",
        describe_leak("Without a defence,", base),
        f"The nearest, {nearest.label}, costs {accuracy_cost(base, nearest, on):.1f} points.",
        describe_leak_again("With it,", nearest),
    ]
    if on == "validation":
        parts.append(f"On the test set, {describe_price(base, nearest)}.")
    if nearest.learned_nothing:
        parts.append("It learned nothing, so its leak means nothing.")
    return Verdict("costs-too-much", " ".join(parts), base, nearest)


def judge_matched(base: Summary, best: Summary) -> Verdict:
    """Say how much less leaks at matched accuracy, and what that costs."""
    before, after = mean_bits(base), mean_bits(best)
    drop = 1 - after / before if before > 0 else 0.0
    kind: VerdictKind = "helps-little" if drop < LITTLE_HELP else "helps"
    starts = {"helps-little": "The defence helps only a little."}
    if drop <= NO_DIFFERENCE or not is_separated(base, best):
        kind, outcome = "does-not-help", "leaks as much, within what can be told apart"
        if drop < -NO_DIFFERENCE:
            outcome = "leaks more"
        starts[kind] = f"The defence does not help: the best variant, {best.label}, {outcome}."
    parts = [
        starts.get(kind, ""),
        describe_leak("Without a defence,", base),
        describe_leak_again(f"With {best.label},", best),
        f"Then {describe_price(base, best)}.",
    ]
    if kind != "does-not-help" and best.label_only is not None:
        share = format_whole_percent(best.label_only)
        parts.append(f"The label alone gives the right image in {share} of cases.")
    return Verdict(kind, " ".join(filter(None, parts)), base, best)


def is_separated(base: Summary, best: Summary) -> bool:
    """Say whether fewer bits leak beyond doubt: the 95 % interval of the drop, paired by seed.

    It goes over test images, too, where values of each were kept. With fewer than three common
    seeds there is no interval, and the means decide.
    """
    common = sorted(base.bits_of_seed.keys() & best.bits_of_seed.keys())
    if len(common) < MIN_SEEDS:
        return True
    before, after = resample_bits(base, common), resample_bits(best, common)
    images = [b - a for b, a in zip(before, after, strict=False)]  # none where one kept none
    drop = crossed_interval(
        (base.bits_of_seed[seed] - best.bits_of_seed[seed] for seed in common), images
    )
    return drop.half is None or (drop.mean or 0.0) > drop.half


def resample_bits(summary: Summary, seeds: Sequence[int]) -> list[float]:
    """Return the mean bits of these seeds in each bootstrap sample of the test images."""
    samples_of_seeds = (summary.bits_again.get(seed, []) for seed in seeds)
    return [fmean(bits) for bits in zip(*samples_of_seeds, strict=True)]


def accuracy_cost(base: Summary, other: Summary, on: MatchedOn = "test") -> float:
    """Return the accuracy lost, in percentage points; infinity where one was not measured."""
    before, after = accuracy_on(base, on).mean, accuracy_on(other, on).mean
    return math.inf if before is None or after is None else 100 * (before - after)


def accuracy_on(summary: Summary, on: MatchedOn) -> Estimate:
    """Return the accuracy on the validation set or on the test set."""
    return summary.validation if on == "validation" else summary.accuracy


def describe_price(base: Summary, best: Summary) -> str:
    """Say what the defence costs in accuracy, as a clause."""
    lost = accuracy_cost(base, best)
    if abs(lost) < 0.05:
        return f"accuracy stays the same ({format_percent(best.accuracy)})"
    change = f"{'falls' if lost > 0 else 'rises'} by {abs(lost):.1f} points"
    return f"accuracy {change} ({format_percent(base.accuracy)} to {format_percent(best.accuracy)})"


def describe_leak(start: str, summary: Summary) -> str:
    """Say how much leaks, of how much, and how often the best possible attacker is right."""
    if is_all(summary):
        text = f"{start} all {summary.cap:.1f} bits leak beyond the label."
    else:
        most = "" if summary.cap is None else f" of at most {summary.cap:.1f}"
        text = f"{start} {mean_bits(summary):z.2f}{most} bits leak beyond the label."
    if summary.identification.mean is None:
        return text
    picked = f"one of {summary.choices} images" if summary.choices else "image"
    share = format_whole_percent(summary.identification.mean)
    return f"{text} The best possible attacker picks the right {picked} in {share} of cases."


def describe_leak_again(start: str, summary: Summary) -> str:
    """Say how much leaks where the cap and the attacker were introduced before."""
    bits = f"all {summary.cap:.1f}" if is_all(summary) else f"{mean_bits(summary):z.2f}"
    if summary.identification.mean is None:
        return f"{start} {bits} bits leak."
    share = format_whole_percent(summary.identification.mean)
    return f"{start} {bits} bits leak, and that attacker is right in {share} of cases."


def is_all(summary: Summary) -> bool:
    """Say whether all bits leak that could."""
    return summary.cap is not None and mean_bits(summary) > summary.cap - CAP_TOLERANCE


def describe_attack(verdict: Verdict) -> str | None:
    """Say how far the worst trained attack gets, against one who knows only the label."""
    base, best = verdict.base, verdict.best or verdict.base
    if best is None or best.mse.mean is None:
        return None
    names = " or ".join(best.worst) or "the worst attack"
    parts = [f"The best reconstruction by a trained attack ({names}) has MSE {best.mse.mean:.4f}."]
    if base is not None and base is not best and base.mse.mean is not None:
        parts.append(f"Without a defence it is {base.mse.mean:.4f}.")
    if best.oracle_mse is not None:
        parts.append(f"The average image of the class has {best.oracle_mse:.4f}.")
    return " ".join(parts)


def describe_single_image_updates(verdict: Verdict) -> str | None:
    """Say that an update gives its image away: where an attack did it, or the run's settings allow.

    Only noise on updates stands against that, whatever the features tell.
    """
    summary = verdict.best or verdict.base
    if summary is None:
        return None
    rows = [row for run in summary.runs for row in run.attacks if row.attack == FIRST_LAYER_ATTACK]
    errors = [row.mse for row in rows if row.mse is not None]
    smallest = [run.result.smallest_update_images for run in summary.runs]
    noises = [run.settings.update.noise for run in summary.runs]
    is_single = any(count == 1 and not noise for count, noise in zip(smallest, noises, strict=True))
    if errors and min(errors) <= COPY_MSE:
        presence = "In this run there are such updates." if is_single else ""
        return (
            "Whoever sees the update of a client that holds one image has the image: "
            f"{FIRST_LAYER_ATTACK} reads it off (MSE {min(errors):.4f}). {presence}".rstrip()
        )
    if is_single and not errors:
        return (
            "A client's update is made of a single image in this run, and may give it away: "
            f"`fedcel attack RUN --set attack.names={FIRST_LAYER_ATTACK}` tries to read it off."
        )
    return None


def list_cautions(summaries: Sequence[Summary], verdict: Verdict) -> list[str]:
    """Return the cautions that these numbers call for."""
    cautions = []
    base, best = verdict.base, verdict.best
    if base and best and None not in (base.noise, best.noise) and base.noise != best.noise:
        cautions.append(
            f"The undefended model sends noise of sigma {base.noise:g}. With {best.label}, sigma "
            f"is {best.noise:g}. So part of the difference comes from the noise. Compare at equal "
            "noise, too."
        )
    collapsed = [s.label for s in summaries if s.learned_nothing]
    if collapsed:
        cautions.append(
            f"No better than a guess: {'; '.join(collapsed)}. Nothing was learned there, so a "
            "small leak is none of a defence's merit."
        )
    cautions += describe_weak_attacks(summaries)
    for summary in summaries:
        bounds = [run.result.fano_identification for run in summary.runs]
        bound = max((value for value in bounds if value is not None), default=None)
        if bound is not None and (summary.identification.mean or 0) > bound + 1e-9:
            cautions.append(
                f"{summary.label}: identification "
                f"{format_whole_percent(summary.identification.mean or 0)} is above the "
                f"certificate's bound {format_whole_percent(bound)}. One of the two is wrong; do "
                "not rely on it."
            )
    return cautions


def describe_weak_attacks(summaries: Sequence[Summary]) -> list[str]:
    """Return one sentence that names the variants whose attack does worse than the label alone."""
    weak = [
        (summary.label, mse, label_only)
        for summary in summaries
        if (mse := summary.mse.mean) is not None
        and (label_only := summary.oracle_mse)
        and mse > WEAK_ATTACK * label_only
    ]
    if not weak:
        return []
    labels = " or ".join(sorted({f"{label_only:.4f}" for _, _, label_only in weak}))
    names = "; ".join(f"{name} ({mse:.4f})" for name, mse, _ in weak)
    return [
        f"The trained attack does worse than knowing only the label (MSE {labels}) on {names}. "
        "That is a weak attack or a damaged model, not more privacy."
    ]


def format_percent(value: Estimate) -> str:
    """Return a share as percent with one decimal."""
    return "an unmeasured share" if value.mean is None else f"{100 * value.mean:.1f}{PERCENT}"


def format_whole_percent(value: float) -> str:
    """Return a share as whole percent."""
    return f"{100 * value:.0f}{PERCENT}"


def mean_bits(summary: Summary) -> float:
    """Return the mean bits beyond the label; infinity where they were not measured."""
    return math.inf if summary.bits.mean is None else summary.bits.mean
