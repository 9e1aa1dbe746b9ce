"""Statistics within each class, of all classes at once.

Spreads are taken from differences to a centre, never as E|z|^2 - |E z|^2, which cancels. Centres
are constants to autograd: at its own weighted mean a spread is stationary in the centre, so the
gradient is exact without that path, and the graph is half as long.

Leading dimensions `*k`, where there are any, count clients whose batches of B examples are computed
at once, each by itself.
"""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from fedcel.errors import DataError, DivergedError
from fedcel.short_repr import show_shapes

ClassShare = Literal["batch-share", "mean-present", "none"]
"""Rule for a class's share in the loss."""


@show_shapes
class Members(NamedTuple):
    """Membership of examples in classes.

    Attributes:
        one_hot: (B, C), 1 where example i is of class c, else 0.
        counts: Column sums (C,), the number of members of each class.
    """

    one_hot: Float[Tensor, "*k B C"]
    counts: Float[Tensor, "*k C"]


def class_members(y: Int[Tensor, "*k B"], classes: int, like: Float[Tensor, "*k B D"]) -> Members:
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
    check_labels(y, classes)
    one_hot = torch.eq(y.unsqueeze(-1), torch.arange(classes, device=like.device)).to(like.dtype)
    return Members(one_hot, one_hot.sum(-2))


def check_labels(y: Int[Tensor, "*k B"], classes: int) -> None:
    """Raise DataError where a label is not in 0..C-1; a negative one would count from the end."""
    if y.numel():
        low, high = (int(label) for label in y.aminmax())
        if low < 0 or high >= classes:
            raise DataError(
                f"labels are in {low}..{high}, must be in 0..{classes - 1}; number the classes "
                "without a gap from 0, or raise their number"
            )


def check_finite(z: Float[Tensor, "*k B D"], y: Int[Tensor, "*k B"]) -> None:
    """Raise DivergedError unless the length of each feature vector is a finite number."""
    wrong = ~torch.linalg.vector_norm(z, dim=-1).isfinite()
    if wrong.any():
        raise DivergedError(
            f"class {int(y[wrong][0])}: features of {int(wrong.sum())} of {y.numel()} examples "
            "are nan or inf, must be finite: the encoder ran away; lower local.rate or local.clip"
        )


def rank_in_class(y: Int[Tensor, " B"]) -> Int[Tensor, " B"]:
    """Count the examples of the same class before each.

    Args:
        y: Labels (B,), from 0.

    Returns:
        Numbers (B,), from 0.
    """
    order = y.argsort(stable=True)
    counts = y.bincount()
    first = counts.cumsum(0) - counts
    return torch.empty_like(y).scatter(0, order, torch.arange(len(y)) - first[y[order]])


def select_rows(
    rows: Float[Tensor, "*k C D"], index: Int[Tensor, "*k B"]
) -> Float[Tensor, "*k B D"]:
    """Return the row of each example: `rows[index]`, each client's from its own rows."""
    if index.dim() == 1:
        return rows.index_select(0, index)
    if len(index) == 1:
        return rows[0].index_select(0, index[0]).unsqueeze(0)
    size = rows.shape[-2]
    first = torch.arange(0, size * len(index), size, device=index.device)
    # index_select, not [...]: three times as fast on rows this short.
    flat = rows.flatten(0, -2).index_select(0, (index + first[:, None]).flatten())
    return flat.view(*index.shape, rows.shape[-1])


def weighted_sums(
    values: Float[Tensor, "*k B"], weights: Float[Tensor, "*k B C"]
) -> Float[Tensor, "*k C"]:
    """Return sum_i weights_ic values_i."""
    return (values.unsqueeze(-2) @ weights).squeeze(-2)


def weighted_means(
    z: Float[Tensor, "*k B D"], weights: Float[Tensor, "*k B C"]
) -> Float[Tensor, "*k C D"]:
    """Return sum_i weights_ic z_i as constants, in units of z."""
    with torch.no_grad():
        return weights.mT @ z


def weighted_spread(
    z: Float[Tensor, "*k B D"],
    centre: Float[Tensor, "*k B D"],
    weights: Float[Tensor, "*k B C"],
) -> Float[Tensor, "*k C"]:
    """Return v_c = sum_i weights_ic |z_i - centre_i|^2, in units of z squared."""
    spread: Tensor = _WeightedSpread.apply(z, centre, weights)
    return spread


class _WeightedSpread(torch.autograd.Function):
    """The spread, with its gradient: 2 weights_ic (z_i - centre_i) and |z_i - centre_i|^2.

    As one operation of autograd: on small batches the number of operations costs, not their size.
    """

    @staticmethod
    def forward(ctx: Any, z: Tensor, centre: Tensor, weights: Tensor) -> Tensor:
        gap = z - centre
        squared = gap.square().sum(-1)
        ctx.save_for_backward(gap, squared, weights)
        return weighted_sums(squared, weights)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, None, Tensor | None]:
        gap, squared, weights = ctx.saved_tensors
        pull = torch.matmul(weights, slope.unsqueeze(-1)).mul(gap).mul(2)
        by_weight = squared.unsqueeze(-1) * slope.unsqueeze(-2) if ctx.needs_input_grad[2] else None
        return pull, None, by_weight


def uniform_weights(members: Members) -> Float[Tensor, "*k B C"]:
    """Return weights 1/n_c for the members of each class c."""
    return members.one_hot / members.counts.clamp_min(1).unsqueeze(-2)


def plain_spread(
    z: Float[Tensor, "*k B D"], y: Int[Tensor, "*k B"], members: Members
) -> Float[Tensor, "*k C"]:
    """Return each class's mean |z - class mean|^2; 0 for absent classes and single members."""
    weights = uniform_weights(members)
    return weighted_spread(z, select_rows(weighted_means(z, weights), y), weights)


def drop_singletons(counts: Float[Tensor, "*k C"]) -> Float[Tensor, "*k C"]:
    """Return the counts with 0 in place of 1: a single member has no spread of its own."""
    return counts * (counts > 1)


def weighted_mean(
    values: Float[Tensor, "*k C"], weights: Float[Tensor, "*k C"]
) -> Float[Tensor, "*k"]:
    """Return the weighted mean as a constant, for the log; 0 when all weights are 0.

    Weights are 0 or at least 1: the lower limit of their sum changes an empty sum only.
    """
    total: Tensor = torch.linalg.vecdot(values.detach(), weights)
    return total / weights.sum(-1).clamp_min(1)


def select_measured(
    metrics: Mapping[str, Float[Tensor, "*k"]], is_measured: Bool[Tensor, "*k"]
) -> dict[str, Float[Tensor, "*k"]]:
    """Return metrics of K clients, NaN where there is nothing to measure."""
    return {name: value.where(is_measured, torch.nan) for name, value in metrics.items()}


def class_shares(counts: Float[Tensor, "*k C"], share: ClassShare) -> Float[Tensor, "*k C"]:
    """Compute beta, the factor of each class's penalty, from its members that carry a signal.

    `batch-share`: n_c / sum n; `mean-present`: 1 / classes present; `none`: 1 for each class that
    is present. 0 for a class with a count of 0: the first two sum to 1, or to 0 without a class.
    """
    part = counts if share == "batch-share" else (counts > 0).to(counts.dtype)
    return part if share == "none" else part / part.sum(-1, keepdim=True).clamp_min(1)
