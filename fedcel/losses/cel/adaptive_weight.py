"""The adaptive gamma of `cel.schedule = "target"`, which the server moves after every round."""

from collections.abc import Mapping
from typing import NamedTuple

from fedcel.losses.cel.adaptive_threshold import smooth_error, warn_of_missing_spread
from fedcel.losses.cel.conditional_entropy import CEL

FIRST_SHARE = 0.1
"""Where gamma begins, and the least that it falls to."""


class WeightControl(NamedTuple):
    """What the next round's gamma depends on.

    Attributes:
        gamma: Factor of `cel.weight` at most, in [FIRST_SHARE, 1].
        error: Smoothed, in [-1, 1]; above 0 where gamma has to fall.
    """

    gamma: float
    error: float = 0.0


def init_control(cel: CEL) -> WeightControl | None:
    """Return the control before round 1, or None where gamma follows the time."""
    if cel.kind == "none" or cel.schedule != "target":
        return None
    return WeightControl(FIRST_SHARE)


def next_weight(
    control: WeightControl, measured: Mapping[str, float], cel: CEL, rounds: int
) -> WeightControl:
    """Return the control after a round in which the loss acted.

    gamma moves by -e times the largest step, e the smoothed error of `smooth_error`: it rises while
    the validation accuracy, or the spread of the clients' batches, is above the goal, and falls
    while it is below. The largest step is 1 - FIRST_SHARE over the rounds from `cel.warm-up` to
    `cel.ramp` of all, so that it is the ramp's where all is allowed: the plan of a round takes the
    ramp where that is smaller. gamma stays in [FIRST_SHARE, 1]: the loss goes on acting where the
    goal is never met.

    Where most clients report no spread, and that is followed, gamma stays, with a warning.
    """
    if cel.target == "spread" and "spread" not in measured:
        warn_of_missing_spread(cel, "weight")
        return control
    error = smooth_error(control.error, measured, cel)
    largest_step = (1 - FIRST_SHARE) / max(1.0, cel.ramp * rounds - cel.warm_up)
    gamma = control.gamma - largest_step * error
    return WeightControl(max(FIRST_SHARE, min(1.0, gamma)), error)
