"""Utility of a run's private answers, for the terminal: all options, and the cheapest one."""

import math
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from fedcel.errors import SettingsError
from fedcel.metrics import chance_accuracy, is_at_chance
from fedcel.privacy import (
    USUAL_EPSILONS,
    AnswerOption,
    ClippedAnswers,
    LabelledLogits,
    accuracy_ceiling,
    choose_cheapest,
    clip_sensitivity,
    label_only_epsilon,
    list_options,
    score_options,
    score_probabilities,
)
from fedcel.runs import Run, predict_labelled, read_run
from fedcel.settings import PrivacySettings
from sims.progress import show_steps
from sims.report.table import Table, format_columns, make_table

EPSILON_STEP = 0.5
"""The epsilon at which labels lose no more than is allowed is rounded up to a multiple of it..."""
EPSILON_MARGIN = 0.25
"""...that is larger by this at least, so that the noise of few images hardly matters."""
CEILING = "limit for a perfect model"
"""The line of the accuracies that no mechanism exceeds at delta 0."""


def describe_answers(
    folder: Path, allowed_loss: float, *, epsilons: Sequence[float], clips: Sequence[float]
) -> str:
    """Score every mechanism, clip and epsilon on a run's answers.

    Args:
        folder: The run's folder.
        allowed_loss: Share of accuracy that privacy may cost.
        epsilons: Privacy losses of an answer; none: those of the run, and the one at which labels
            alone stay within the loss.
        clips: Sizes of the clips `l1` and `clamp`.

    Returns:
        Two tables, the cheapest option and the clips' sensitivities, in lines.

    Raises:
        RunError: The folder is no finished run.
    """
    with show_steps("private answers") as show_step:
        show_step(0, 0, "reading the run")
        run = read_run(folder)
        validation = predict_labelled(run, run.splits.validation, "privacy-validation")
        test = predict_labelled(run, run.splits.test, "privacy-test")
        own_validation, own_test = (measure_own_accuracy(part) for part in (validation, test))
        steps = list(epsilons) or choose_epsilons(run, own_validation, allowed_loss)
        settings = list_options(run.settings.privacy, steps, clips)
        check_options(settings, run.splits.classes)
        options = []
        for number, option in enumerate(score_options(settings, validation, test), 1):
            options.append(option)
            show_step(number, len(settings), name_option(option.privacy))
    cheapest = choose_cheapest(options, own_validation - allowed_loss)
    lines = [
        f"private answers of {folder}, {len(run.splits.test.y)} test images, "
        f"{run.splits.classes} classes; without privacy {100 * own_test:.1f} % are right",
        "",
        format_columns(make_answer_table(options, run.splits.classes)),
        "",
    ]
    chance = chance_accuracy(run.splits.test.y)
    if is_at_chance(own_test, len(run.splits.test.y), chance):
        lines.append(
            f"nothing was learned: without privacy {100 * own_test:.1f} % are right, which cannot "
            f"be told from a guess ({100 * chance:.1f} %), so no option is recommended"
        )
        return "\n".join(lines)
    lines.append(describe_choice(cheapest, own_validation, own_test, allowed_loss))
    if cheapest is None or cheapest.privacy.mechanism == "label-only":
        lines.append(describe_label_only(run, own_validation, allowed_loss))
    return "\n".join([*lines, "", *describe_sensitivity(clips, run.splits.classes)])


def check_options(options: Sequence[PrivacySettings], classes: int) -> None:
    """Refuse what no mechanism can be built of, before any is scored: SettingsError."""
    for privacy in options:
        try:
            privacy.build(classes)
        except ValueError as error:
            raise SettingsError(f"{name_option(privacy)}: {error}") from None


def measure_own_accuracy(images: LabelledLogits) -> float:
    """Return how often the net itself is right, without privacy."""
    return score_probabilities(images.logits.softmax(1), images).accuracy


def choose_epsilons(run: Run, accuracy: float, allowed_loss: float) -> list[float]:
    """Return the run's epsilons, and the one that labels alone need, if there is one."""
    epsilons = {*USUAL_EPSILONS, run.settings.privacy.epsilon}
    needed = label_only_epsilon(accuracy, allowed_loss, run.splits.classes)
    if 0 < needed < math.inf:
        epsilons.add(math.ceil((needed + EPSILON_MARGIN) / EPSILON_STEP) * EPSILON_STEP)
    return sorted(epsilons)


def make_answer_table(options: Sequence[AnswerOption], classes: int) -> Table:
    """Return accuracy and calibration error of each mechanism and clip, a column an epsilon."""
    epsilons = list(dict.fromkeys(option.privacy.epsilon for option in options))
    rows = []
    for (mechanism, clip), same in groupby(options, lambda option: name_parts(option.privacy)):
        by_epsilon = {option.privacy.epsilon: option.test for option in same}
        scores = [by_epsilon[epsilon] for epsilon in epsilons]
        seconds = sorted(score.seconds for score in scores)[len(scores) // 2]
        cells = [f"{100 * score.accuracy:.1f} ({score.ece:.3f})" for score in scores]
        rows.append([mechanism, clip, f"{1e6 * seconds:.0f}", *cells])
    ceilings = [f"{100 * accuracy_ceiling(epsilon, 0, classes):.1f}" for epsilon in epsilons]
    rows.append([CEILING, "", "", *ceilings])
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
    mechanism, clip = name_parts(privacy)
    return f"{mechanism}{'' if clip == '-' else f', {clip}'}, epsilon {privacy.epsilon:g}"


def describe_choice(
    cheapest: AnswerOption | None, own_validation: float, own_test: float, allowed_loss: float
) -> str:
    """Return the option that is the cheapest within the loss, chosen on validation images."""
    points = f"{100 * allowed_loss:g} points"
    if cheapest is None:
        return (
            f"no option stays within {points} of {100 * own_validation:.1f} % on validation "
            "images; allow a larger --accuracy-loss, or add larger --epsilons"
        )
    settings = [f"privacy.mechanism={cheapest.privacy.mechanism}"]
    settings.append(f"privacy.epsilon={cheapest.privacy.epsilon:g}")
    if isinstance(cheapest.privacy, ClippedAnswers):
        settings.append(f"privacy.clip-kind={cheapest.privacy.clip_kind}")
        settings.append(f"privacy.clip={cheapest.privacy.clip:g}")
    return (
        f"cheapest within {points}, chosen on validation images "
        f"({100 * cheapest.validation.accuracy:.1f} % where the run has "
        f"{100 * own_validation:.1f} %): "
        f"{name_option(cheapest.privacy)}\n"
        f"on test images {100 * cheapest.test.accuracy:.1f} ± "
        f"{100 * cheapest.test.half_width:.1f} % are right, {100 * own_test:.1f} % without "
        f"privacy; ECE {cheapest.test.ece:.3f}. A model that is never wrong would reach "
        f"{100 * cheapest.ceiling:.1f} %\n"
        f"set it with: {' '.join(f'--set {setting}' for setting in settings)}"
    )


def describe_label_only(run: Run, accuracy: float, allowed_loss: float) -> str:
    """Return the epsilon from which labels alone stay within the loss."""
    needed = label_only_epsilon(accuracy, allowed_loss, run.splits.classes)
    return (
        f"label-only loses no more than {100 * allowed_loss:g} points from epsilon {needed:.2f} on "
        "(computed, not measured)"
    )


def describe_sensitivity(clips: Sequence[float], classes: int) -> list[str]:
    """Return the sensitivities that clips enforce."""
    kinds = [*((kind, clip) for kind in ("l1", "clamp") for clip in clips), ("probabilities", 1.0)]
    lines = ["how far a clip lets two answers lie apart in L1 (the sensitivity), for any inputs:"]
    for kind, clip in kinds:
        name = kind if kind == "probabilities" else f"{kind}, clip {clip:g}"
        lines.append(f"  {name}: {clip_sensitivity(kind, clip, classes):.4g}")
    return lines
