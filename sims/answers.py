"""Private answers of a run: every mechanism, clip and epsilon is scored, the cheapest one named."""

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, product
from pathlib import Path
from typing import NamedTuple

from fedcel.errors import SettingsError
from fedcel.metrics import chance_accuracy, is_at_chance
from fedcel.privacy import (
    USUAL_EPSILONS,
    AnswerScore,
    ClippedAnswers,
    GaussianAnswers,
    LabelledLogits,
    LabelOnlyAnswers,
    LaplaceAnswers,
    OwnAnswers,
    PrivacySettings,
    accuracy_ceiling,
    fit_calibration,
    score_answers,
    score_probabilities,
)
from fedcel.runs import predict_labelled, read_run
from sims.progress import show_steps
from sims.report.table import Table, format_columns, make_table

VALIDATION_ANSWERS = 4000
"""Answers by which an option is chosen, so that its noise does not choose."""
EPSILON_STEP = 0.5
"""The epsilon at which labels lose no more than is allowed is rounded up to a multiple of it..."""
EPSILON_MARGIN = 0.25
"""...that is larger by this at least, so that the noise of few images hardly matters."""


class AnswerOption(NamedTuple):
    """One mechanism at one clip and epsilon, with the scores of its answers."""

    privacy: PrivacySettings
    validation: AnswerScore
    """By which options are chosen; each half of the images is read with logits of the other."""
    test: AnswerScore
    """It chooses nothing."""


def describe_answers(
    folder: Path, allowed_loss: float, *, epsilons: Sequence[float], clips: Sequence[float]
) -> str:
    """Score every mechanism, clip (of the sizes `clips`) and epsilon on a run's answers.

    Without `epsilons` they are those of the run, and the one at which labels alone stay within
    `allowed_loss`, a share of accuracy. Returns a table and the cheapest option. SettingsError
    where no mechanism can be built with one of these.
    """
    with show_steps("private answers") as show_step:
        show_step(0, 0, "reading the run")
        run = read_run(folder)
        classes = run.splits.classes
        validation = predict_labelled(run, run.splits.validation, "privacy-validation")
        test = predict_labelled(run, run.splits.test, "privacy-test")
        before, test_before = (
            score_probabilities(part.logits.softmax(1), part).accuracy
            for part in (validation, test)
        )
        needed = label_only_epsilon(before, allowed_loss, classes)
        steps = list(epsilons) or choose_epsilons(run.settings.privacy.epsilon, needed)
        settings = list_options(run.settings.privacy, steps, clips)
        for privacy in settings:  # before any is scored
            try:
                privacy.build(classes)
            except ValueError as error:
                raise SettingsError(f"{name_option(privacy)}: {error}") from None
        options = []
        for number, option in enumerate(score_options(settings, validation, test), 1):
            options.append(option)
            show_step(number, len(settings), name_option(option.privacy))
    parts = [
        f"private answers of {folder}, {len(run.splits.test.y)} test images, {classes} classes; "
        f"without privacy {100 * test_before:.1f} % are right",
        format_columns(make_answer_table(options, classes)),
    ]
    chance, points = chance_accuracy(run.splits.test.y), f"{100 * allowed_loss:g} points"
    cheapest = choose_cheapest(options, before - allowed_loss)
    if is_at_chance(test_before, len(run.splits.test.y), chance):
        parts.append(
            "nothing was learned: the accuracy cannot be told from a guess "
            f"({100 * chance:.1f} %), so no option is recommended"
        )
        return "\n\n".join(parts)
    if cheapest is None:
        parts.append(
            f"no option stays within {points} of {100 * before:.1f} % on validation images; allow "
            "a larger --accuracy-loss, or add larger --epsilons"
        )
    else:
        parts.append(describe_choice(cheapest, points, before, test_before))
    if cheapest is None or cheapest.privacy.mechanism == "label-only":
        parts.append(
            f"label-only loses no more than {points} from epsilon {needed:.2f} on "
            "(computed, not measured)"
        )
    return "\n\n".join(parts)


def list_options(
    privacy: PrivacySettings, epsilons: Iterable[float], clips: Iterable[float]
) -> list[PrivacySettings]:
    """List each built-in mechanism, and a user's own, with each clip, at each epsilon.

    `clips` are sizes of the clips `l1` and `clamp`. The epsilons of an option follow each other.
    """
    kinds: list[PrivacySettings] = [LabelOnlyAnswers()]
    if isinstance(privacy, OwnAnswers):
        kinds.append(privacy)
    for noise in (
        LaplaceAnswers(),
        LaplaceAnswers(mechanism="discrete-laplace"),
        GaussianAnswers(),
    ):
        for kind, clip in (*product(("l1", "clamp"), clips), ("probabilities", 1.0)):
            kinds.append(noise.model_copy(update={"clip_kind": kind, "clip": clip}))
    return [
        kind.model_copy(update={"epsilon": epsilon}) for kind, epsilon in product(kinds, epsilons)
    ]


def score_options(
    options: Iterable[PrivacySettings], validation: LabelledLogits, test: LabelledLogits
) -> Iterator[AnswerOption]:
    """Score options one after the other, on validation and test images."""
    times = math.ceil(VALIDATION_ANSWERS / max(len(validation.labels), 1))
    first, second = split_images(validation)
    pairs = ((second, first.repeat(times)), (first, second.repeat(times)), (validation, test))
    for privacy in options:
        mechanism = privacy.build(test.logits.shape[1])
        *halves, of_test = (
            score_answers(mechanism, fit_calibration(mechanism, *references[:2]), images)
            for references, images in pairs
        )
        mean = AnswerScore(*(math.fsum(values) / 2 for values in zip(*halves, strict=True)))
        half_width = mean.half_width / math.sqrt(2)  # of the disjoint images of both
        yield AnswerOption(privacy, mean._replace(half_width=half_width), of_test)


def split_images(images: LabelledLogits) -> list[LabelledLogits]:
    """Return every second image, and the others; all messages about an image stay together."""
    logits = images.logits.view(images.messages, -1, images.logits.shape[1])
    labels = images.labels.view(images.messages, -1)
    return [
        LabelledLogits(
            logits[:, first::2].reshape(-1, logits.shape[2]),
            labels[:, first::2].reshape(-1),
            images.messages,
        )
        for first in (0, 1)
    ]


def choose_cheapest(options: Iterable[AnswerOption], least_accuracy: float) -> AnswerOption | None:
    """Choose the most accurate option of the least epsilon that suffices on validation images."""
    good = [option for option in options if option.validation.accuracy >= least_accuracy]
    return min(
        good, key=lambda option: (option.privacy.epsilon, -option.validation.accuracy), default=None
    )


def label_only_epsilon(accuracy: float, loss: float, classes: int) -> float:
    """Return the epsilon at which labels by themselves lose no more than an accuracy.

    With chance p of the truth, (1 - p)/(C - 1) of any other label, an answer is right with chance
    a p + (1 - a)(1 - p)/(C - 1), a the accuracy of the net's own labels; this is
    solved for p = e^eps/(e^eps + C - 1). Epsilon is 0 where a guess is good enough, infinite where
    nothing may be lost.
    """
    if accuracy - loss <= 1 / classes:
        return 0.0
    by_chance = (1 - accuracy) / (classes - 1)
    truth = (accuracy - loss - by_chance) / (accuracy - by_chance)
    if truth >= 1:
        return math.inf
    return max(0.0, math.log((classes - 1) * truth / (1 - truth))) if truth > 0 else 0.0


def choose_epsilons(configured: float, needed: float) -> list[float]:
    """Return the usual epsilons, the run's own, and one just above the one that labels need."""
    epsilons = {*USUAL_EPSILONS, configured}
    if 0 < needed < math.inf:
        epsilons.add(math.ceil((needed + EPSILON_MARGIN) / EPSILON_STEP) * EPSILON_STEP)
    return sorted(epsilons)


def make_answer_table(options: Sequence[AnswerOption], classes: int) -> Table:
    """Return accuracy and calibration error of each mechanism and clip, a column an epsilon."""
    epsilons = list(dict.fromkeys(option.privacy.epsilon for option in options))
    rows = []
    for names, same in groupby(options, lambda option: name_parts(option.privacy)):
        by_epsilon = {option.privacy.epsilon: option.test for option in same}
        scores = [by_epsilon[epsilon] for epsilon in epsilons]
        seconds = sorted(score.seconds for score in scores)[len(scores) // 2]
        cells = [f"{100 * score.accuracy:.1f} ({score.ece:.3f})" for score in scores]
        rows.append([*names, f"{1e6 * seconds:.0f}", *cells])
    ceilings = [f"{100 * accuracy_ceiling(epsilon, 0.0, classes):.1f}" for epsilon in epsilons]
    rows.append(["limit for a perfect model", "", "", *ceilings])
    heads = [f"eps {epsilon:g}" for epsilon in epsilons]
    head = ["accuracy, % (ECE)", "clip", "us an answer", *heads]
    return make_table("Private answers", head, rows, words=2)


def name_parts(privacy: PrivacySettings) -> tuple[str, str]:
    """Return the names of a mechanism and of its clip."""
    if not isinstance(privacy, ClippedAnswers):
        return privacy.mechanism, "-"
    size = "" if privacy.clip_kind == "probabilities" else f" {privacy.clip:g}"
    return privacy.mechanism, f"{privacy.clip_kind}{size}"


def name_option(privacy: PrivacySettings) -> str:
    """Return an option's name in one line."""
    names = ", ".join(name for name in name_parts(privacy) if name != "-")
    return f"{names}, epsilon {privacy.epsilon:g}"


def describe_choice(cheapest: AnswerOption, points: str, before: float, test_before: float) -> str:
    """Return the option that is the cheapest within the loss, and the settings that choose it."""
    privacy, test = cheapest.privacy, cheapest.test
    keys = {"mechanism": privacy.mechanism, "epsilon": f"{privacy.epsilon:g}"}
    if isinstance(privacy, ClippedAnswers):
        keys |= {"clip-kind": privacy.clip_kind, "clip": f"{privacy.clip:g}"}
    return (
        f"cheapest within {points}, chosen on validation images "
        f"({100 * cheapest.validation.accuracy:.1f} % where the run has "
        f"{100 * before:.1f} %): {name_option(privacy)}\n"
        f"on test images {100 * test.accuracy:.1f} ± {100 * test.half_width:.1f} % are right, "
        f"{100 * test_before:.1f} % without privacy; ECE {test.ece:.3f}\n"
        f"set it with: {' '.join(f'--set privacy.{key}={value}' for key, value in keys.items())}"
    )
