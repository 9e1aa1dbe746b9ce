"""Gradient reversal: parameters that climb while the rest descends (Ganin et al., JMLR 2016)."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor


def reverse_gradient(theta: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Return a view of the values, whose gradient arrives with the other sign."""
    reversed_theta: Tensor = _GradientReversal.apply(theta)
    return reversed_theta


class _GradientReversal(torch.autograd.Function):
    """The identity, with a gradient of -1."""

    @staticmethod
    def forward(ctx: Any, theta: Tensor) -> Tensor:
        return theta.view_as(theta)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Tensor:
        return slope.neg()
