"""The adaptive threshold of the `log` penalty, which the server moves after every round."""

import math
from collections.abc import Mapping
from typing import NamedTuple
from warnings import warn

from fedcel.losses.cel.conditional_entropy import CEL
from fedcel.losses.cel.spread_penalties import LOG_OFFSET, SpreadCEL
from fedcel.losses.protocol import CutShape

MAX_LOG_STEP = 0.2
"""Largest change of ln tau in a round."""

NEW_ERROR_WEIGHT = 0.4
"""Share of the newest error in the smoothed one that is acted upon."""

FULL_STEP_ERROR = {"spread": 0.5, "accuracy": 0.02}
"""Error at which tau takes the largest step: in ln(spread), and in accuracy."""

MAX_RATIO = 4.0
"""Beyond this multiple or fraction of the spread, moving tau on would change nothing."""


class ThresholdControl(NamedTuple):
    """What the next round's threshold depends on.

    Attributes:
        threshold: tau, in units of z squared.
        error: Smoothed, in [-1, 1]; above 0 where tau has to rise.
    """

    threshold: float
    error: float = 0.0


def init_control(cel: CEL, cut: CutShape) -> ThresholdControl | None:
    """Return the control before round 1 with the penalty's own tau, or None where tau is fixed."""
    if not isinstance(cel, SpreadCEL) or cel.target == "none" or cel.schedule == "target":
        return None
    return ThresholdControl(cel.find_threshold(cel.pool_cut(cut)))


def next_threshold(
    control: ThresholdControl, measured: Mapping[str, float], cel: CEL
) -> ThresholdControl:
    """Return the control after a round in which the loss acted.

    ln tau moves by MAX_LOG_STEP e, e the error of `smooth_error`. So tau rises while classes are
    tighter, or answers worse, than the goal, and falls otherwise; a single round, whatever a client
    reports, moves it by 22 % at most. tau never moves beyond MAX_RATIO times the spread, nor below
    that fraction of it (or LOG_OFFSET), where it acts on every class or on none: else it would take
    as long to come back as it went on.

    Where most clients report no spread the threshold stays, with a warning: their batches had no
    two of a class, or the loss does not measure it.
    """
    if "spread" not in measured:
        warn_of_missing_spread(cel, "threshold")
        return control
    spread = max(measured["spread"], 0.0)
    error = smooth_error(control.error, measured, cel)
    lowest = min(control.threshold, max(LOG_OFFSET, spread / MAX_RATIO))
    highest = max(control.threshold, MAX_RATIO * spread)
    threshold = control.threshold * math.exp(MAX_LOG_STEP * error)
    return ThresholdControl(max(lowest, min(highest, threshold)), error)


def smooth_error(last_error: float, measured: Mapping[str, float], cel: CEL) -> float:
    """Compute by how much a round missed the goal, smoothed; above 0 the loss is too strong.

    ln(goal / `spread`) of what the clients measured (their batches' spread, weighted mean), or goal
    less the validation `accuracy`, each as a share of FULL_STEP_ERROR and at most 1 in size. The
    newest counts NEW_ERROR_WEIGHT.
    """
    if cel.target == "spread":
        spread = max(measured["spread"], 0.0)
        deviation = math.log((cel.goal + LOG_OFFSET) / (spread + LOG_OFFSET))
    else:
        deviation = cel.goal - measured["accuracy"]
    error = max(-1.0, min(1.0, deviation / FULL_STEP_ERROR[cel.target]))
    return last_error + NEW_ERROR_WEIGHT * (error - last_error)


def warn_of_missing_spread(cel: CEL, steered: str) -> None:
    """Warn that what follows a goal stands still, since clients measured no spread."""
    warn(
        f"cel.target is {cel.target!r} and most clients told no 'spread' in a round: the "
        f"{steered} stays; cel.kind {cel.kind!r} must measure it, and their batches need two "
        "images of a class: set local.balance to true or raise local.batch-size",
        stacklevel=3,
    )
