"""Sums of deltas that a few hostile clients cannot move at will; all without noise."""

from collections.abc import Iterable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from fedcel.errors import RoundError
from fedcel.federation.aggregation import weighted_sum
from fedcel.settings import StrategySettings

_HALF = 0.5 - 1e-7
"""A trimmed mean of this trim is the median, the mean of the two middle values where it is even."""
_NEGLIGIBLE = 1e-6  # share of a client's weight that is only rounding: times 1e38 it would count
_BLOCK = 2**16  # parameters sorted or compared at once
_MIN_DELTAS = 3
_MAX_PASSES = 100
_SMOOTHING = 1e-6  # Pillutla et al.'s nu, in units of the median distance
_TOLERANCE = 1e-9  # a pass that moves the centre by less, in the same units, is the last


def combine_deltas(
    rule: StrategySettings, deltas: Iterable[Float[Tensor, " P"]], weights: Sequence[float]
) -> Float[Tensor, " P"]:
    """Make one delta of m clients', by the rule `strategy.aggregation`, in units of w.

    `mean` is sum_k w_k delta_k. The others find where the clients agree: only the ratios of the
    weights count, not their sum, and Krum's choice does not look at them at all.

    Args:
        rule: The rule and its numbers.
        deltas: One flat vector (P,) a client; `mean` takes them one at a time.
        weights: w_k of each, in the same order.

    Returns:
        The combined delta, (P,).

    Raises:
        RoundError: There are fewer than 3 deltas, among which nobody can tell who is odd, or
            fewer than Krum needs; never for `mean`.
    """
    if rule.aggregation == "mean":
        return weighted_sum(deltas, weights)
    stacked = torch.stack([*deltas])
    if len(stacked) < _MIN_DELTAS:
        raise RoundError(
            f"{len(stacked)} updates can be used in this round, strategy.aggregation "
            f"{rule.aggregation!r} needs {_MIN_DELTAS}; start more nodes or raise "
            "clients-per-round"
        )
    share = torch.tensor(weights, dtype=torch.float64)
    share /= share.sum()
    if rule.aggregation == "clipped":
        return clipped_mean(stacked, share)
    if rule.aggregation == "geometric-median":
        return geometric_median(stacked, share)
    if rule.aggregation in ("krum", "multi-krum"):
        best = 1 if rule.aggregation == "krum" else max(len(stacked) - rule.byzantine, 1)
        return krum(stacked, share, byzantine=rule.byzantine, best=best)
    return trimmed_mean(stacked, share, _HALF if rule.aggregation == "median" else rule.trim)


def trimmed_mean(
    deltas: Float[Tensor, "m P"], share: Float[Tensor, " m"], trim: float
) -> Float[Tensor, " P"]:
    """Average each coordinate without its smallest and its largest `trim` of the weight.

    `share` are weights that add up to 1; a client at the edge counts with the part of its weight
    that is inside. Coordinate-wise trimmed mean and, at _HALF, median of Yin et al., ICML 2018,
    definitions 1 and 2; with equal weights and `trim` m whole they are exactly theirs.
    """
    means = []
    for block in torch.split(deltas, _BLOCK, dim=1):
        value, order = block.double().sort(dim=0)
        last = share[order].cumsum(0)
        inside = last.clamp(max=1 - trim) - (last - share[order]).clamp(min=trim)
        inside = torch.where(inside > _NEGLIGIBLE * (1 - 2 * trim), inside, 0.0)
        means.append((inside * value).sum(0) / inside.sum(0))
    return torch.cat(means).to(deltas.dtype)


def clipped_mean(deltas: Float[Tensor, "m P"], share: Float[Tensor, " m"]) -> Float[Tensor, " P"]:
    """Compute the weighted mean of deltas scaled down to the median of their L2 norms.

    Norm bounding of Sun et al., 2019, section 4 (arXiv 1911.07963), the bound the round's own
    median, so that it needs no setting. A hostile client still pulls, but no harder than others.
    """
    norms = torch.linalg.vector_norm(deltas, dim=1, dtype=torch.float64)
    bound = trimmed_mean(norms[:, None], share, _HALF)
    return weighted_sum(
        list(deltas), (share * torch.where(norms > bound, bound / norms, 1.0)).tolist()
    )


def krum(
    deltas: Float[Tensor, "m P"], share: Float[Tensor, " m"], *, byzantine: int, best: int
) -> Float[Tensor, " P"]:
    """Compute the weighted mean of the `best` deltas nearest to their m - f - 2 nearest others.

    f is `byzantine`; distances are squared. One delta is Krum, more are Multi-Krum (Blanchard et
    al., NIPS 2017, section 4). The choice is without weights: each client has one vote.
    RoundError unless m >= 2 f + 3.
    """
    m = len(deltas)
    if m < 2 * byzantine + 3:
        raise RoundError(
            f"{m} updates can be used in this round, Krum needs {2 * byzantine + 3} or more for "
            f"strategy.byzantine {byzantine}; lower it, or set strategy.aggregation to 'median'"
        )
    distances = torch.zeros(m, m, dtype=torch.float64)
    for block in torch.split(deltas, _BLOCK, dim=1):
        x = block.double()
        distances += torch.cdist(x, x, compute_mode="donot_use_mm_for_euclid_dist").square()
    scores = distances.sort(dim=1).values[:, 1 : m - byzantine - 1].sum(1)  # the first is itself
    chosen = scores.argsort(stable=True)[:best].sort().values
    return weighted_sum(list(deltas[chosen]), (share[chosen] / share[chosen].sum()).tolist())


def geometric_median(
    deltas: Float[Tensor, "m P"], share: Float[Tensor, " m"]
) -> Float[Tensor, " P"]:
    """Compute the point whose weighted sum of distances to the deltas is least.

    Smoothed Weiszfeld passes (Pillutla, Kakade and Harchaoui, IEEE TSP 2022, algorithm 2) from the
    coordinate median. Each pass lowers the sum, so that stopping early costs only exactness. Where
    more than half of the weight is at one point, that is the answer.
    """
    x = deltas.double()
    centre = trimmed_mean(x, share, _HALF)
    radii = torch.linalg.vector_norm(x - centre, dim=1)
    unit = trimmed_mean(radii[:, None], share, _HALF)
    if not unit:
        return centre.to(deltas.dtype)
    for _ in range(_MAX_PASSES):
        pull = share / radii.clamp(min=_SMOOTHING * unit)
        before, centre = centre, (pull / pull.sum()) @ x
        radii = torch.linalg.vector_norm(x - centre, dim=1)
        if torch.linalg.vector_norm(centre - before) <= _TOLERANCE * unit:
            break
    return centre.to(deltas.dtype)
