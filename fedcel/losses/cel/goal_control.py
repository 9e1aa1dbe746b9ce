"""Control of a loss by a goal: the server moves its threshold, or its weight, after each round."""

import math
from collections.abc import Mapping
from typing import Literal, NamedTuple
from warnings import warn

from fedcel.losses.cel.conditional_entropy import CEL, LOG_OFFSET, SpreadCEL
from fedcel.losses.protocol import CutShape

MAX_LOG_STEP = 0.2
"""Largest change of ln tau in a round."""

NEW_ERROR_WEIGHT = 0.4
"""Share of the newest error in the smoothed one that is acted upon."""

FULL_STEP_ERROR = {"spread": 0.5, "accuracy": 0.02}
"""Error at which tau or gamma takes the largest step: in ln(spread), and in accuracy."""

MAX_RATIO = 4.0
"""Beyond this multiple or fraction of the spread, moving tau on would change nothing."""

FIRST_SHARE = 0.1
"""First and least gamma."""


class GoalControl(NamedTuple):
    """State of a threshold or weight that follows `cel.target`.

    Attributes:
        steered: Which of the two it is.
        value: tau, in units of z squared, or gamma, a factor of `cel.weight` in [FIRST_SHARE, 1].
        error: Smoothed miss of the goal, in [-1, 1]; above 0 where the loss is too strong.
    """

    steered: Literal["threshold", "weight"]
    value: float
    error: float = 0.0


def init_control(cel: CEL, cut: CutShape) -> GoalControl | None:
    """Make the control before round 1: the penalty's own tau, or the least gamma.

    Args:
        cel: Options of the loss.
        cut: The features before they are pooled.

    Returns:
        The control, None where nothing follows a goal.
    """
    if cel.target == "none":
        return None
    if cel.schedule == "target":
        return GoalControl("weight", FIRST_SHARE)
    if not isinstance(cel, SpreadCEL):
        return None
    return GoalControl("threshold", cel.find_threshold(cel.pool_cut(cut)))


def move_control(
    control: GoalControl, measured: Mapping[str, float], number: int, *, cel: CEL, rounds: int
) -> GoalControl:
    """Move the control after a round in which the loss acted.

    The error is ln(goal / `spread`) of what the clients measured, or goal less the validation
    `accuracy`, as a share of FULL_STEP_ERROR and at most 1 in size; the newest counts
    NEW_ERROR_WEIGHT.

    ln tau moves by MAX_LOG_STEP times the error: it rises while classes are tighter, or answers
    worse, than the goal. A round moves tau by 22 % at most, whatever a client reports. tau never
    moves beyond MAX_RATIO times the spread, nor below that fraction of it (or LOG_OFFSET), where it
    acts on every class or on none. A tau that follows the accuracy waits until the ramp's end:
    early on the model is merely young.

    gamma moves the other way, in a round at most by the slope of the ramp from `cel.warm-up` to
    `cel.ramp` of all rounds. Where the ramp itself is lower, it decides.

    Where most clients report no spread and one is needed, the control stays, with a warning.

    Args:
        control: After the last round.
        measured: The clients' `spread`, if they report it, and the model's `accuracy`.
        number: The round, from 1.
        cel: Options of the loss.
        rounds: Rounds of the run.

    Returns:
        The control of the next round.
    """
    is_threshold = control.steered == "threshold"
    ramp_end = cel.ramp * rounds
    if is_threshold and cel.target == "accuracy" and number < ramp_end:
        return control
    if "spread" not in measured and (is_threshold or cel.target == "spread"):
        warn(
            f"cel.target is {cel.target!r} and most clients told no 'spread' in a round: the "
            f"{control.steered} stays; cel.kind {cel.kind!r} must measure it, and their batches "
            "need two images of a class: set local.balance to true or raise local.batch-size",
            stacklevel=2,
        )
        return control
    spread = max(measured.get("spread", 0.0), 0.0)
    if cel.target == "spread":
        deviation = math.log((cel.goal + LOG_OFFSET) / (spread + LOG_OFFSET))
    else:
        deviation = cel.goal - measured["accuracy"]
    newest = max(-1.0, min(1.0, deviation / FULL_STEP_ERROR[cel.target]))
    error = control.error + NEW_ERROR_WEIGHT * (newest - control.error)
    if is_threshold:
        lowest = min(control.value, max(LOG_OFFSET, spread / MAX_RATIO))
        highest = max(control.value, MAX_RATIO * spread)
        moved = control.value * math.exp(MAX_LOG_STEP * error)
    else:
        lowest, highest = FIRST_SHARE, 1.0
        moved = control.value - (1 - FIRST_SHARE) / max(1.0, ramp_end - cel.warm_up) * error
    return control._replace(value=max(lowest, min(highest, moved)), error=error)
