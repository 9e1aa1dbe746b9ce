"""How far apart two clipped answers can be: what noise must be in proportion to.

Plain numbers, no tensors: settings are checked by the same functions.
"""

import math
from numbers import Integral
from typing import Literal

from fedcel.errors import SettingsError
from fedcel.ranges import POSITIVE

ClipKind = Literal["clamp", "l1", "probabilities"]
"""What is clipped: each centred logit, their L1 norm, or nothing of the softmax's probabilities."""


def clip_sensitivity(kind: str, clip: float, classes: int, norm: int = 1) -> float:
    """Return the largest distance of two clipped rows.

    In L1 and L2: 2 c C and 2 c sqrt(C) of `clamp`, 2 c and 2 c of `l1`, 2 and sqrt(2) of
    `probabilities`.

    Args:
        kind: A `ClipKind`.
        clip: c, in units of a logit, above 0.
        classes: C, the values of a row.
        norm: 1 for L1, 2 for L2.

    Returns:
        The distance, in units of a clipped row.

    Raises:
        ValueError: There is no such kind, or `clip` is not finite and above 0.
    """
    POSITIVE.check("clip", clip)
    distances = {
        "clamp": (2 * clip * classes, 2 * clip * math.sqrt(classes)),
        "l1": (2 * clip, 2 * clip),
        "probabilities": (2.0, math.sqrt(2)),
    }
    if kind not in distances:
        raise ValueError(f"clip-kind is {kind!r}, must be 'clamp', 'l1' or 'probabilities'")
    return distances[kind][norm - 1]


def check_classes(classes: int) -> None:
    """Refuse answers of fewer than two classes, which tell nothing.

    Args:
        classes: Values of an answer.

    Raises:
        ValueError: There are fewer than two.
    """
    if isinstance(classes, bool) or not isinstance(classes, Integral) or classes < 2:
        raise ValueError(f"there are {classes!r} classes, must be 2 or more, a whole number")


def noise_sensitivity(
    kind: str, clip: float, classes: int, norm: int = 1, *, stated: float | None = None
) -> float:
    """Return the sensitivity to add noise for: the stated one, or the clip's.

    Args:
        kind: A `ClipKind`.
        clip: Largest value or norm, see `clip_sensitivity`.
        classes: Values of a row.
        norm: 1 for Laplace noise, 2 for Gaussian.
        stated: A larger one, by hand; None: the clip's.

    Returns:
        The sensitivity, in units of a clipped row.

    Raises:
        SettingsError: The clip lets two rows be further apart than stated.
        ValueError: As `clip_sensitivity`.
    """
    enforced = clip_sensitivity(kind, clip, classes, norm)
    if stated is not None:
        POSITIVE.check("sensitivity", stated)
    if stated is not None and not stated >= enforced:
        raise SettingsError(
            f"privacy.sensitivity is {stated:g}, must be at least {enforced:g}: the clip {kind!r} "
            f"at privacy.clip {clip:g} lets two answers of {classes} classes be that far apart "
            f"(L{norm}), and less noise would not protect them; lower privacy.clip, or set "
            "privacy.sensitivity to 'none'"
        )
    return enforced if stated is None else stated
