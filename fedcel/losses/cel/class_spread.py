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
from fedcel.short_repr import summarise_record


class Members(NamedTuple):
    """Which examples are in which class.

    Attributes:
        one_hot: (B, C), 1 where example i is of class c, else 0.
        counts: Column sums (C,), the number of members of each class.
    """

    one_hot: Float[Tensor, "B C"]
    counts: Float[Tensor, " C"]

    def __repr__(self) -> str:
        """Show shapes in the place of numbers."""
        return summarise_record(self)


def class_members(y: Int[Tensor, " B"], classes: int, like: Float[Tensor, "B D"]) -> Members:
    """Find the members of each class in a batch.

    Args:
        y: Labels (B,).
        classes: C.
        like: A tensor whose dtype and device the result has.

    Returns:
        The members; classes may have none.

    Raises:
        DataError: A label is not in 0..C-1; a negative one would count from the end.
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


def uniform_weights(members: Members) -> Float[Tensor, "B C"]:
    """Return weights 1/n_c for the members of each class c."""
    return members.one_hot / members.counts.clamp_min(1)


def plain_spread(
    z: Float[Tensor, "B D"], y: Int[Tensor, " B"], members: Members
) -> Float[Tensor, " C"]:
    """Return each class's mean |z - class mean|^2; 0 for absent classes and single members."""
    weights = uniform_weights(members)
    return weighted_spread(z, weighted_means(z, weights)[y], weights)


def drop_singletons(counts: Float[Tensor, " C"]) -> Float[Tensor, " C"]:
    """Return the counts with 0 in place of 1: a single member has no spread of its own."""
    return counts * (counts > 1)


def weighted_mean(values: Float[Tensor, " C"], weights: Float[Tensor, " C"]) -> Float[Tensor, ""]:
    """Return the weighted mean as a constant, for the log; 0 when all weights are 0.

    Weights are counts or marks, hence 0 or at least 1.
    """
    return values.detach() @ weights / weights.sum().clamp_min(1)
