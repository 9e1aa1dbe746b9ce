"""What the numbers say, in plain words; the wording follows the numbers."""

import math
from collections.abc import Sequence
from statistics import fmean
from typing import Literal, NamedTuple

from sims.report.summary import Summary
from sims.results.estimate import MIN_SEEDS, Estimate
from sims.results.intervals import crossed_interval

POINTS = 2.0  # accuracy a defence may cost and still count as matched, percentage points
PERCENT = "\N{NO-BREAK SPACE}%"
SLIGHT = 0.05  # a smaller share of the undefended leak is called no difference
LITTLE = 0.25  # a smaller share is called a little
ALL = 0.005  # bits this near to the cap are all of them, to the two decimals shown
SUSPECT = 1.15  # MSE this many times that of label-only knowledge: weak attack or dead model

Kind = Literal["helps", "helps-little", "does-not-help", "costs-too-much", "no-baseline", "alone"]
Match = Literal["validation", "test"]


class Verdict(NamedTuple):
    """The headline and the two summaries it compares (`base`: undefended).

    `compared` is the number of defended variants that `best` was chosen among.
    """

    kind: Kind
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
    if base is None or base.bits.mean is None:
        found = _without_base(min(defended, key=_bits, default=None), len(summaries) == 1)
        return found._replace(compared=len(defended))
    if not defended:
        bare = sum(s.undefended for s in summaries)
        what = "Only undefended models were" if bare > 1 else "Only the undefended model was"
        text = f"{what} measured: {f'with {base.label} ' * (bare > 1)}{_leak(base)}."
        return Verdict("alone", text, base, None)
    on = describe_matching(summaries)
    near = [s for s in defended if accuracy_cost(base, s, on) <= POINTS + 1e-9]
    if near:
        found = _compare(base, min(near, key=_bits))
    else:
        found = _too_dear(base, min(defended, key=lambda s: accuracy_cost(base, s, on)), on)
    return found._replace(compared=len(defended))


def describe_matching(summaries: Sequence[Summary]) -> Match:
    """Return on which images accuracy is matched: validation, if all were scored there."""
    return "validation" if all(s.validation.mean is not None for s in summaries) else "test"


def _without_base(best: Summary | None, alone: bool) -> Verdict:
    if best is None:
        text = "The bits that leak beyond the label were not measured, so there is no verdict."
        return Verdict("alone" if alone else "no-baseline", text, None, None)
    if alone:
        text = f"This model classifies {format_percent(best.accuracy)} correctly; {_leak(best)}."
        return Verdict("alone", text, None, best)
    text = (
        "There is no undefended variant (no cel.kind, no defence.name, nothing swept) to compare "
        "with, so these numbers do not show what a defence gains. The least leaks with "
        f"{best.label}: {_leak(best)}, at {format_percent(best.accuracy)} accuracy."
    )
    return Verdict("no-baseline", text, None, best)


def _too_dear(base: Summary, best: Summary, on: Match) -> Verdict:
    tested = f", {describe_price(base, best)} on the test set" if on == "validation" else ""
    text = (
        f"No defence stayed within {POINTS} points of the undefended {on} accuracy, "
        f"{format_percent(_accuracy(base, on))}. Without a defence, {_leak(base)}. The nearest, "
        f"{best.label}, costs {accuracy_cost(base, best, on):.1f} points: with it "
        f"{_leak(best, again=True)}{tested}."
    )
    return Verdict("costs-too-much", text, base, best)


def _compare(base: Summary, best: Summary) -> Verdict:
    before, after = _bits(base), _bits(best)
    drop = 1 - after / before if before > 0 else 0.0
    if drop <= SLIGHT or not is_separated(base, best):
        why = "leaks more" if drop < -SLIGHT else "leaks as much, within what can be told apart"
        text = (
            f"The defence does not help: the best variant, {best.label}, {why}. Without a defence, "
            f"{_leak(base)}; with {best.label}, {_leak(best, again=True)}, "
            f"{describe_price(base, best)}."
        )
        return Verdict("does-not-help", text, base, best)
    kind: Kind = "helps-little" if drop < LITTLE else "helps"
    start = "The defence helps only a little. " if kind == "helps-little" else ""
    known = (
        ""
        if best.label_only is None
        else f" By the label alone: {format_whole_percent(best.label_only)}."
    )
    text = (
        f"{start}Without a defence, {_leak(base)}. With {best.label}, {_leak(best, again=True)}, "
        f"{describe_price(base, best)}.{known}"
    )
    return Verdict(kind, text, base, best)


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
    each = (summary.bits_again.get(seed, []) for seed in seeds)
    return [fmean(bits) for bits in zip(*each, strict=True)]


def accuracy_cost(base: Summary, other: Summary, on: Match = "test") -> float:
    """Return the accuracy lost, in percentage points; infinity where one was not measured."""
    before, after = _accuracy(base, on).mean, _accuracy(other, on).mean
    return math.inf if before is None or after is None else 100 * (before - after)


def _accuracy(summary: Summary, on: Match) -> Estimate:
    return summary.validation if on == "validation" else summary.accuracy


def describe_price(base: Summary, best: Summary) -> str:
    """Say what the defence costs in accuracy, in words."""
    lost = accuracy_cost(base, best)
    both = f"({format_percent(base.accuracy)} to {format_percent(best.accuracy)})"
    if abs(lost) < 0.05:
        return f"at no cost in accuracy ({format_percent(best.accuracy)})"
    if lost < 0:
        return f"while accuracy rises by {-lost:.1f} points {both}"
    return f"at a cost of {lost:.1f} points of accuracy {both}"


def _leak(summary: Summary, again: bool = False) -> str:
    """Say how much leaks; `resample_bits`: the cap and the attacker were introduced before."""
    if summary.cap is not None and _bits(summary) > summary.cap - ALL:
        bits = f"all {summary.cap:.1f} bits leak"
    else:
        most = "" if summary.cap is None or again else f" of at most {summary.cap:.1f}"
        bits = f"{_bits(summary):.2f}{most} bits leak"
    bits += "" if again else " beyond the label"
    if summary.identification.mean is None:
        return bits
    cases = f"in {format_whole_percent(summary.identification.mean)} of cases"
    if again:
        return f"{bits} and that attacker is right {cases}"
    of = f"the right one of {summary.choices} images" if summary.choices else "the right image"
    return f"{bits}, and the best possible attacker picks {of} {cases}"


def describe_attack(chosen: Verdict) -> str | None:
    """Say how far the worst trained attack gets, against one who knows only the label."""
    best = chosen.best or chosen.base
    if best is None or best.mse.mean is None:
        return None
    names = " or ".join(best.worst) or "the worst attack"
    text = f"The best reconstruction from a trained attack ({names}) has MSE {best.mse.mean:.4f}"
    base = chosen.base
    if base is not None and base is not best and base.mse.mean is not None:
        text += f", {base.mse.mean:.4f} without a defence"
    if best.oracle_mse is not None:
        text += f"; one who knows only the label reaches {best.oracle_mse:.4f}"
    return f"{text}."


def list_cautions(summaries: Sequence[Summary], chosen: Verdict) -> list[str]:
    """Return what in these very numbers asks for care."""
    found = []
    base, best = chosen.base, chosen.best
    if base and best and None not in (base.noise, best.noise) and base.noise != best.noise:
        found.append(
            f"The undefended model sends noise of sigma {base.noise:g}, {best.label} of sigma "
            f"{best.noise:g}: part of the difference is the noise's. Compare at equal noise too."
        )
    found += describe_weak_attacks(summaries)
    for s in summaries:
        bounds = [run.result.fano_identification for run in s.runs]
        bound = max((value for value in bounds if value is not None), default=None)
        if bound is not None and (s.identification.mean or 0) > bound + 1e-9:
            found.append(
                f"{s.label}: identification {format_whole_percent(s.identification.mean or 0)} is "
                f"above the certificate's bound {format_whole_percent(bound)}. One of the two is "
                "wrong; do not rely on it."
            )
    return found


def describe_weak_attacks(summaries: Sequence[Summary]) -> list[str]:
    """Return one sentence that names the variants whose attack does worse than the label alone."""
    known = [(s.label, s.mse.mean, s.oracle_mse) for s in summaries]
    told = [(name, mse, label) for name, mse, label in known if mse is not None and label]
    worse = [(name, mse, label) for name, mse, label in told if mse > SUSPECT * label]
    if not worse:
        return []
    labels = " or ".join(sorted({f"{label:.4f}" for _, _, label in worse}))
    names = "; ".join(f"{name} ({mse:.4f})" for name, mse, _ in worse)
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


def _bits(summary: Summary) -> float:
    return math.inf if summary.bits.mean is None else summary.bits.mean
