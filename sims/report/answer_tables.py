"""Utility of a run's private answers, for the terminal: all options, and the cheapest one."""

import math
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from fedcel.errors import SettingsError
from fedcel.metrics import chance_accuracy, is_at_chance
from fedcel.privacy import (
    USUAL_EPSILONS,
    ClippedAnswers,
    accuracy_ceiling,
    clip_sensitivity,
    score_probabilities,
)
from fedcel.runs import predict_labelled, read_run
from fedcel.settings import PrivacySettings
from sims.progress import show_steps
from sims.report.answer_options import (
    AnswerOption,
    choose_cheapest,
    label_only_epsilon,
    list_options,
    score_options,
)
from sims.report.table import Table, format_columns, make_table

EPSILON_STEP = 0.5
"""The epsilon at which labels lose no more than is allowed is rounded up to a multiple of it..."""
EPSILON_MARGIN = 0.25
"""...that is larger by this at least, so that the noise of few images hardly matters."""


def describe_answers(
    folder: Path, allowed_loss: float, *, epsilons: Sequence[float], clips: Sequence[float]
) -> str:
    """Score every mechanism, clip (of the sizes `clips`) and epsilon on a run's answers.

    Without `epsilons` they are those of the run, and the one at which labels alone stay within
    `allowed_loss`, a share of accuracy. Returns two tables, the cheapest option and the clips'
    sensitivities.

    Raises:
        RunError: The folder is no finished run.
        SettingsError: No mechanism can be built with one of these.
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
    right = f"without privacy {100 * test_before:.1f} % are right"
    lines = [
        f"private answers of {folder}, {len(run.splits.test.y)} test images, "
        f"{classes} classes; {right}",
        "",
        format_columns(make_answer_table(options, classes)),
        "",
    ]
    chance = chance_accuracy(run.splits.test.y)
    if is_at_chance(test_before, len(run.splits.test.y), chance):
        lines.append(
            f"nothing was learned: {right}, which cannot "
            f"be told from a guess ({100 * chance:.1f} %), so no option is recommended"
        )
        return "\n".join(lines)
    cheapest = choose_cheapest(options, before - allowed_loss)
    points = f"{100 * allowed_loss:g} points"
    if cheapest is None:
        lines.append(
            f"no option stays within {points} of {100 * before:.1f} % on validation "
            "images; allow a larger --accuracy-loss, or add larger --epsilons"
        )
    else:
        lines.append(describe_choice(cheapest, points, before, test_before))
    if cheapest is None or cheapest.privacy.mechanism == "label-only":
        lines.append(
            f"label-only loses no more than {points} from epsilon {needed:.2f} on "
            "(computed, not measured)"
        )
    return "\n".join([*lines, "", *describe_sensitivity(clips, classes)])


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
    ceilings = [f"{100 * accuracy_ceiling(epsilon, 0, classes):.1f}" for epsilon in epsilons]
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
        f"{100 * test_before:.1f} % without privacy; ECE {test.ece:.3f}. A model that is never "
        f"wrong would reach {100 * cheapest.ceiling:.1f} %\n"
        f"set it with: {' '.join(f'--set privacy.{key}={value}' for key, value in keys.items())}"
    )


def describe_sensitivity(clips: Sequence[float], classes: int) -> list[str]:
    """Return the sensitivities that clips enforce."""
    kinds = {f"{kind}, clip {clip:g}": (kind, clip) for kind in ("l1", "clamp") for clip in clips}
    kinds["probabilities"] = ("probabilities", 1.0)
    return [
        "how far a clip lets two answers lie apart in L1 (the sensitivity), for any inputs:",
        *(f"  {name}: {clip_sensitivity(*kind, classes):.4g}" for name, kind in kinds.items()),
    ]
