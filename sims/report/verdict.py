"""Sentences of a report: verdict, cautions and limits; the wording follows the numbers."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from statistics import fmean
from typing import NamedTuple

import numpy as np

from fedcel.attacks import ATTACKS, REPEAT_MARK, find_contradictions
from sims.report.summary import FinishedRun, Summary
from sims.report.table import format_number, join_numbers
from sims.results.columns import ACCURACY, BITS, IDENTIFICATION, MSE, ORACLE_MSE, POSITIONS
from sims.results.intervals import MIN_SEEDS, estimate_samples
from sims.results.records import FailedCell

MATCHED_POINTS = 2.0  # of accuracy that a defence may cost and still count as matched
NO_DIFFERENCE = 0.05  # a smaller share of the undefended leak is called no difference
WEAK_ATTACK = 1.15  # MSE this many times that of label-only knowledge: weak attack or dead model
PERCENT = "\N{NO-BREAK SPACE}%"


class Verdict(NamedTuple):
    """Comparison of the undefended summary with the best defended one.

    Attributes:
        summaries: All that was measured.
        outcome: Sentence before the measures; empty where these speak for themselves.
        base: The undefended summary.
        best: The defended one that leaks least at matched accuracy, or the nearest one.
        is_nearest: Whether no defended one has matched accuracy.
    """

    summaries: Sequence[Summary]
    outcome: str = ""
    base: Summary | None = None
    best: Summary | None = None
    is_nearest: bool = False

    @property
    def shown(self) -> Summary:
        """The summary that the verdict is about."""
        return self.best or self.base or self.summaries[0]

    @property
    def featured(self) -> list[Summary]:
        """The summaries that are compared, or else the first one."""
        return [s for s in (self.base, self.best) if s is not None] or [self.summaries[0]]

    @property
    def runs(self) -> list[FinishedRun]:
        """Runs of all summaries."""
        return [run for summary in self.summaries for run in summary.runs]

    @property
    def sentence(self) -> str:
        """The sentence that a reader takes away."""
        return f"{self.outcome} {self._describe_measures()}".strip()

    def compare(self, show: Callable[[Summary], str]) -> str:
        """Return a number of the summary shown, with the undefended one in brackets."""
        if self.base is None or self.base is self.shown:
            return show(self.shown)
        return f"{show(self.shown)} (undefended: {show(self.base)})"

    def _describe_measures(self) -> str:
        """Return accuracy and leak, unless the network learned nothing."""
        shown = self.shown
        if shown.learned_nothing:
            chance = percent(shown.results[0].chance_accuracy, 1)
            return (
                f"Nothing was learned, so this leak means nothing: {shown.label} classifies "
                f"{percent(shown.mean(ACCURACY), 1)} of {shown.row.candidates} test images "
                f"correctly, which cannot be told from a guess ({chance}). Train longer or at "
                "another rate, or lower the noise or the weight of the loss."
            )
        if shown.mean(BITS) is None:
            return "The bits that leak beyond the label were not measured, so there is no verdict."
        choices, cap = shown.row.identification_candidates, shown.row.bits_cap
        picked = f"one of {choices} images" if choices else "image"
        most = "" if cap is None else f" of {cap:.1f}"
        bits = self.compare(lambda s: format_number(s.mean(BITS), 2))
        return (
            f"With {shown.label}, the best possible attacker picks the right {picked} in "
            f"{self.compare(lambda s: percent(s.mean(IDENTIFICATION)))} of cases, "
            f"{bits}{most} bits leak beyond the label, and accuracy is "
            f"{self.compare(lambda s: percent(s.mean(ACCURACY), 1))}."
        )

    def describe_attack(self) -> str:
        """Compare the worst trained attack with knowing only the label; "" where there was none."""
        shown = self.shown
        if shown.mean(MSE) is None:
            return ""
        error = self.compare(lambda s: format_number(s.mean(MSE), 4))
        label_only = format_number(shown.mean(ORACLE_MSE), 4)
        return (
            f"The best reconstruction by a trained attack ({' or '.join(shown.worst_attacks)}) has "
            f"MSE {error}, the average image of the class {label_only}."
        )

    def describe_seeds(self) -> str:
        """Return the number of training seeds of each variant, and the meaning of the intervals."""
        counts = {summary.label: len(summary.rows) for summary in self.summaries}
        most = max(counts.values())
        fewer = [f"; {label}: {count}" for label, count in counts.items() if count < most]
        meaning = (
            "±: 95 % interval of the mean over seeds (Student's t, from three on), and over test "
            "images where each image's values were kept."
        )
        if most < MIN_SEEDS:
            meaning = "Too few for an interval, so small differences mean nothing."
        return f"Training seeds of each variant: {most}{''.join(fewer)}. {meaning}"

    def describe_left_out(self) -> str:
        """Return how often clients were left out, why, and the weight kept; "" for none."""
        events = [event for run in self.runs for event in run.events]
        reasons = Counter(reply.reason for event in events for reply in event.rejected)
        if not reasons:
            return ""
        shares = [event.share for event in events]
        texts = "; ".join(f"{number} × {reason}" for reason, number in reasons.most_common())
        return (
            f"Clients were left out in {sum(bool(event.rejected) for event in events)} of "
            f"{len(events)} rounds ({texts}): {fmean(shares):.1%} of the clients' weight was kept "
            f"on average, {min(shares):.1%} in the worst round."
        )

    def find_alarms(self) -> list[str]:
        """Return what contradicts itself in a run's numbers, so that one of them is wrong."""
        return [
            f"{summary.label}, training seed {row.seed}: {sentence}"
            for summary in self.summaries
            for row, run in zip(summary.rows, summary.runs, strict=True)
            for sentence in find_contradictions(run.attacks, run.result)
        ]

    def list_cautions(self) -> Iterator[str]:
        """Yield the cautions that these numbers call for."""
        if any(
            r.result.smallest_update_images == 1 and not r.settings.update.noise for r in self.runs
        ):
            yield (
                "An update of a client was made of a single image, and gives it away if "
                "`fedcel attack RUN --set attack.names=first-layer` can read it off."
            )
        noises = [s.row.noise for s in (self.base, self.best) if s and s.row.noise is not None]
        if len({*noises}) == 2:
            yield (
                f"The undefended model sends noise of sigma {noises[0]:g}, {self.shown.label} of "
                f"sigma {noises[1]:g}: part of the difference comes from the noise."
            )
        if collapsed := [s.label for s in self.summaries if s.learned_nothing]:
            yield (
                f"No better than a guess: {'; '.join(collapsed)}. Nothing was learned there, so a "
                "small leak is no defence's doing."
            )
        weak = [
            f"{s.label} ({error:.4f}, label only {label_only:.4f})"
            for s in self.summaries
            for error, label_only in [(s.mean(MSE), s.mean(ORACLE_MSE))]
            if error is not None and label_only and error > WEAK_ATTACK * label_only
        ]
        if weak:
            yield (
                "The trained attack has a larger MSE than knowing only the label: "
                f"{'; '.join(weak)}. That is a weak attack or a damaged model, not more privacy."
            )

    def list_limits(
        self, failed: Sequence[FailedCell] = (), served: Iterable[str] = ()
    ) -> Iterator[str]:
        """Yield the limits of a report; `served` are the attacks on a live service."""
        runs, shown = self.runs, self.shown
        compared = len(list_defended(self.summaries))
        if self.best and compared > 1 and not self.is_nearest:
            yield (
                f"{shown.label}, named at the top, is the best of {compared} variants on the same "
                "test images, so its numbers are slightly optimistic. The "
                f"{choose_matching(self.summaries)} accuracy decides which variants match."
            )
        rows = [row for summary in self.summaries for row in summary.rows]
        if sizes := join_numbers(row.candidates for row in rows):
            caps = join_numbers(row.bits_cap and round(row.bits_cap, 1) for row in rows)
            most = f"; at most {caps} bits could leak beyond the label" if caps else ""
            yield f"Bits are of M = {sizes} test images, up to Monte Carlo error{most}."
        if notes := dict.fromkeys(note for run in runs for note in run.result.data_notes):
            yield f"Changes made to the images first: {'; '.join(notes)}."
        attacks = [attack for run in runs for attack in run.attacks]
        if failed:
            reasons = "; ".join(f"{failure.cell} ({failure.reason})" for failure in failed)
            yield (
                f"Failed, and so in no number, table or figure: {reasons}. The means of a variant "
                "with failed seeds flatter it."
            )
        tried = {a.attack.partition(REPEAT_MARK)[0] for a in attacks if a.skipped is None} | {
            *served
        }
        if untried := [name for name in ATTACKS if name not in tried]:
            names = ", ".join(untried)
            yield f"Attacks of fedcel that were not run, and may reach further: {names}."
        unrepeatable = sorted({run.result.unrepeatable for run in runs if run.result.unrepeatable})
        yield from (f"The same seed may give another model. {reason}." for reason in unrepeatable)


def find_verdict(summaries: Sequence[Summary]) -> Verdict:
    """Compare the first variant that defends and sweeps nothing with the best defended one.

    The best leaks the fewest bits beyond the label within 2 points of accuracy: on the validation
    set, or on the test set where a run has no validation accuracy.
    """
    base = next((s for s in summaries if s.is_baseline), None)
    defended = list_defended(summaries)
    useful = [s for s in defended if not s.learned_nothing]
    if base is not None and (base.learned_nothing or not defended):
        return Verdict(summaries, base=base)
    if base is None or base.mean(BITS) is None:
        outcome = "No undefended variant was measured, so no gain is shown."
        best = min(useful or defended, key=mean_bits, default=None)
        return Verdict(summaries, outcome if len(summaries) > 1 else "", best=best)
    where = choose_matching(summaries)
    before, *after = (
        s.measure_validation() if where == "validation" else s.mean(ACCURACY)
        for s in (base, *defended)
    )
    costs = {
        summary: math.inf if before is None or accuracy is None else 100 * (before - accuracy)
        for summary, accuracy in zip(defended, after, strict=True)
    }
    matched = [s for s in useful if costs[s] <= MATCHED_POINTS + 1e-9]
    if not matched:
        nearest = min(useful or defended, key=lambda s: costs[s])
        if costs[nearest] <= MATCHED_POINTS + 1e-9:  # it learned nothing, as its measures say
            return Verdict(summaries, "", base, nearest, is_nearest=True)
        outcome = (
            f"Every defence costs more than 2 points of the undefended {where} accuracy, "
            f"{percent(before, 1)}; the nearest, {nearest.label}, costs {costs[nearest]:.1f}."
        )
        return Verdict(summaries, outcome, base, nearest, is_nearest=True)
    best = min(matched, key=mean_bits)
    outcome = "" if leaks_less(base, best) else "No defence is shown to leak less."
    return Verdict(summaries, outcome, base, best)


def list_defended(summaries: Iterable[Summary]) -> list[Summary]:
    """Return the defended summaries whose bits were measured."""
    return [s for s in summaries if not s.row.undefended and s.mean(BITS) is not None]


def leaks_less(base: Summary, best: Summary) -> bool:
    """Whether fewer bits leak, by more than 5 %, and beyond doubt where there are three seeds.

    There the 95 % interval of the drop, paired by seed and over test images, must not hold 0.
    """
    if mean_bits(best) >= (1 - NO_DIFFERENCE) * mean_bits(base):
        return False
    before, after = (
        {
            row.seed: summary.measured[:, number, POSITIONS[BITS.key]]
            for number, row in enumerate(summary.rows)
            if row.bits_beyond_label is not None
        }
        for summary in (base, best)
    )
    length = min(len(base.measured), len(best.measured))
    drops = [before[seed][:length] - after[seed][:length] for seed in before if seed in after]
    if len(drops) < MIN_SEEDS:
        return True
    drop = estimate_samples(np.stack(drops, 1))
    return drop.half is None or (drop.mean or 0.0) > drop.half


def choose_matching(summaries: Sequence[Summary]) -> str:
    """Return the images on which accuracy is matched: validation, if all were scored there."""
    return "test" if None in [s.measure_validation() for s in summaries] else "validation"


def mean_bits(summary: Summary) -> float:
    """Return the mean bits beyond the label; infinity where they were not measured."""
    bits = summary.mean(BITS)
    return math.inf if bits is None else bits


def percent(value: float | None, digits: int = 0) -> str:
    """Return a share as percent."""
    return "an unmeasured share" if value is None else f"{100 * value:.{digits}f}{PERCENT}"
