"""Geometric median of deltas, which a few hostile clients cannot move at will; without noise."""

from collections.abc import Iterable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from fedcel.errors import RoundError
from fedcel.federation.aggregation import weighted_sum

_HALF = 0.5 - 1e-9  # of the weight, less the rounding of a sum
_BLOCK = 2**16  # parameters sorted at once
_MIN_DELTAS = 3
_MAX_PASSES = 100
_SMOOTHING = 1e-6  # Pillutla et al.'s nu, in units of the median distance
_TOLERANCE = 1e-9  # a pass that moves the centre by less, in the same units, is the last


def combine_deltas(
    rule: str, deltas: Iterable[Float[Tensor, " P"]], weights: Sequence[float]
) -> Float[Tensor, " P"]:
    """Combine the deltas of m clients.

    Args:
        rule: `strategy.aggregation`: `mean`, which is sum_k w_k delta_k, or `geometric-median`,
            for which only the ratios of the weights count.
        deltas: One flat vector (P,) a client; `mean` takes them one at a time.
        weights: w_k of each, in the same order.

    Returns:
        The combined delta, (P,).

    Raises:
        RoundError: There are fewer than 3 deltas, among which nobody can tell who is odd; never
            for `mean`.
    """
    if rule == "mean":
        return weighted_sum(deltas, weights)
    stacked = torch.stack([*deltas])
    if len(stacked) < _MIN_DELTAS:
        raise RoundError(
            f"{len(stacked)} updates can be used in this round, strategy.aggregation {rule!r} "
            f"needs {_MIN_DELTAS}; start more nodes or raise clients-per-round"
        )
    share = torch.tensor(weights, dtype=torch.float64)
    return geometric_median(stacked, share / share.sum())


def geometric_median(
    deltas: Float[Tensor, "m P"], share: Float[Tensor, " m"]
) -> Float[Tensor, " P"]:
    """Compute the point whose weighted sum of distances to the deltas is least.

    Smoothed Weiszfeld passes (Pillutla, Kakade and Harchaoui, IEEE TSP 2022, algorithm 2) from the
    coordinate median. Each pass lowers the sum, so that stopping early costs only exactness. Where
    more than half of the weight is at one point, that is the answer. The weights add up to 1.
    """
    x = deltas.double()
    centre = torch.cat([_find_medians(block, share) for block in torch.split(x, _BLOCK, dim=1)])
    radii = torch.linalg.vector_norm(x - centre, dim=1)
    unit = _find_medians(radii[:, None], share)
    if not unit:
        return centre.to(deltas.dtype)
    for _ in range(_MAX_PASSES):
        pull = share / radii.clamp(min=_SMOOTHING * unit)
        before, centre = centre, (pull / pull.sum()) @ x
        radii = torch.linalg.vector_norm(x - centre, dim=1)
        if torch.linalg.vector_norm(centre - before) <= _TOLERANCE * unit:
            break
    return centre.to(deltas.dtype)


def _find_medians(x: Float[Tensor, "m P"], share: Float[Tensor, " m"]) -> Float[Tensor, " P"]:
    """Find the lower weighted median of each column."""
    value, order = x.sort(dim=0)
    first = (share[order].cumsum(0) >= _HALF).int().argmax(0)
    return value.gather(0, first[None])[0]
