"""The clip that enforces a sensitivity: without one, noise of any size promises nothing."""

import math
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from fedcel.ranges import POSITIVE

ClipKind = Literal["clamp", "l1", "probabilities"]
"""Rules of a clip: each centred logit, their L1 norm, or nothing of the softmax's probabilities."""
LARGEST_LOGIT = 1e100  # those beyond are taken as this, so that centring cannot overflow
MARGIN = 1 - 1e-12  # clipped rows shrink by this, so that rounding cannot exceed the sensitivity


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


def clip_rows(logits: Float[Tensor, "B C"], kind: str, clip: float) -> Float[Tensor, "B C"]:
    """Clip logits, so that any two rows differ by at most `clip_sensitivity`.

    Ties may arise, the order of classes never turns. `clamp`: centred, each value in [-clip, clip].
    `l1`: centred, the nearest row whose L1 norm is at most the clip. `probabilities`: softmax, the
    clip is not used. Rows are in double precision. ValueError as `clip_sensitivity`, and on
    undefined logits.
    """
    clip_sensitivity(kind, clip, 1)
    check_logits(logits, logits.shape[-1] if logits.dim() else 0)
    wide = logits.double().clamp(-LARGEST_LOGIT, LARGEST_LOGIT)
    if kind == "probabilities":
        return wide.softmax(1) * MARGIN
    centred = wide - wide.mean(1, keepdim=True)
    clipped = centred.clamp(-clip, clip) if kind == "clamp" else project_l1(centred, clip)
    return clipped * MARGIN


def check_logits(logits: Float[Tensor, "B C"], classes: int) -> None:
    """Refuse undefined logits, and those of another number of classes: ValueError."""
    if logits.dim() != 2:
        raise ValueError(
            f"logits are {tuple(logits.shape)}, must be (B, {classes}), a row an answer; of a "
            "binary decision function d, give numpy.column_stack([-d / 2, d / 2])"
        )
    if logits.shape[1] != classes:
        raise ValueError(f"rows hold {logits.shape[1]} logits, must hold {classes}, one a class")
    if not logits.isfinite().all():
        raise ValueError("logits hold NaN or infinity, must be finite; check the model's weights")


def check_finite(clipped: Float[Tensor, "..."]) -> None:
    """Refuse to noise what is undefined, which no noise hides: ValueError."""
    if not clipped.isfinite().all():
        raise ValueError("clipped logits hold NaN or infinity, must be finite; clip them first")


def project_l1(rows: Float[Tensor, "B C"], radius: float) -> Float[Tensor, "B C"]:
    """Return the nearest rows with |row|_1 <= radius; Duchi et al., ICML 2008, figure 1."""
    size = rows.abs()
    inside = size.sum(1, keepdim=True) <= radius
    return torch.where(inside, rows, rows.sign() * project_simplex(size, radius))


def project_simplex(rows: Float[Tensor, "B C"], total: float) -> Float[Tensor, "B C"]:
    """Project rows onto the simplex: the nearest ones with values >= 0 and a given sum above 0.

    Duchi et al., ICML 2008, figure 1.
    """
    # Relative to each row's maximum: what lies more than `total` below it becomes 0 in any case,
    # and huge values lose no digits.
    below = (rows - rows.amax(1, keepdim=True)).clamp_min(-total)
    ordered = below.sort(1, descending=True).values
    rank = torch.arange(1, rows.shape[1] + 1, dtype=rows.dtype)
    threshold = (ordered.cumsum(1) - total) / rank
    last = (ordered > threshold).sum(1, keepdim=True) - 1
    return (below - threshold.gather(1, last)).clamp_min(0)
