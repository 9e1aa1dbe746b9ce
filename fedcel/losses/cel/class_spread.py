"""Statistics within each class, of all classes at once.

Spreads are taken from differences to a centre, never as E|z|^2 - |E z|^2, which cancels. Centres
are constants to autograd: at its own weighted mean a spread is stationary in the centre, so the
gradient is exact without that path, and the graph is half as long.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fedcel.errors import DataError


class Members(NamedTuple):
    """Who is in which class: `one_hot` (B, C) and its column sums `counts` (C,)."""

    one_hot: Float[Tensor, "B C"]
    counts: Float[Tensor, " C"]


def class_members(y: Int[Tensor, " B"], classes: int, like: Float[Tensor, "B D"]) -> Members:
    """Return the classes' members, in the dtype of `like`.

    DataError when a label is not in 0..classes-1: a negative one would count from the end.
    """
    if len(y):
        low, high = (int(label) for label in y.aminmax())
        if low < 0 or high >= classes:
            raise DataError(
                f"labels are in {low}..{high}, must be in 0..{classes - 1}; number the classes "
                "of data.source from 0"
            )
    one_hot = torch.eye(classes, dtype=like.dtype, device=like.device)[y]
    return Members(one_hot, one_hot.sum(0))


def weighted_means(z: Float[Tensor, "B D"], weights: Float[Tensor, "B C"]) -> Float[Tensor, "C D"]:
    """Return sum_i weights_ic z_i as constants, in units of z."""
    with torch.no_grad():
        return weights.T @ z


def weighted_spread(
    z: Float[Tensor, "B D"], centre: Float[Tensor, "B D"], weights: Float[Tensor, "B C"]
) -> Float[Tensor, " C"]:
    """Return v_c = sum_i weights_ic |z_i - centre_i|^2, in units of z squared."""
    return (z - centre).square().sum(1) @ weights


def uniform_weights(group: Members) -> Float[Tensor, "B C"]:
    """Return weights 1/n_c for the members of each class c."""
    return group.one_hot / group.counts.clamp_min(1)


def plain_spread(
    z: Float[Tensor, "B D"], y: Int[Tensor, " B"], group: Members
) -> Float[Tensor, " C"]:
    """Return each class's mean |z - class mean|^2; 0 for absent classes and single members."""
    weights = uniform_weights(group)
    return weighted_spread(z, weighted_means(z, weights)[y], weights)


def drop_singletons(counts: Float[Tensor, " C"]) -> Float[Tensor, " C"]:
    """Return the counts with 0 in place of 1: a single member has no spread of its own."""
    return counts * (counts > 1)


def weighted_mean(values: Float[Tensor, " C"], weights: Float[Tensor, " C"]) -> Float[Tensor, ""]:
    """Return the weighted mean as a constant, for the log; 0 when all weights are 0.

    Weights are counts or marks, hence 0 or at least 1.
    """
    return values.detach() @ weights / weights.sum().clamp_min(1)
