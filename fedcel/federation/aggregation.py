"""The server's arithmetic: weights, weighted sums of deltas, the sliding average."""

from collections.abc import Collection, Iterable, Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor


def weighted_sum(
    deltas: Iterable[Float[Tensor, " P"]], weights: Collection[float]
) -> Float[Tensor, " P"]:
    """Add up weighted deltas, in the order given so that every engine agrees to the bit.

    Args:
        deltas: One flat vector (P,) a client; an iterator is consumed one vector at a time.
        weights: w_k of each, in the same order.

    Returns:
        sum_k w_k delta_k, (P,).

    Raises:
        ValueError: There are no deltas, or not as many as weights.
    """
    total: Tensor | None = None
    for delta, weight in zip(deltas, weights, strict=True):
        total = torch.zeros_like(delta) if total is None else total
        total.add_(delta, alpha=weight)
    if total is None:
        raise ValueError("0 deltas are added up, must be 1 or more")
    return total


def renormalise_weights(
    weights: Mapping[int, float], used: Sequence[int], has_noise: bool
) -> list[float]:
    """Compute the weights of the clients whose updates are used in a round, in the order of `used`.

    Without Langevin noise the weights are scaled to make up for clients left out. With it they are
    not: the noise of each client is right for its own weight, so that the sum over those used is a
    Langevin step at the right temperature, only shorter. Scaled, it would be hotter by that scale.
    """
    share = 1.0 if has_noise else sum(weights[k] for k in used) / sum(weights.values())
    return [weights[client] / share for client in used]


def slide_average(
    average: Float[Tensor, " P"],
    delta: Float[Tensor, " P"],
    momentum: float,
    *,
    frozen: int = 0,
) -> Float[Tensor, " P"]:
    """Move the sliding average of deltas: m <- beta m + (1 - beta) delta, beta = `momentum` < 1.

    Times 1/(1 - beta) it is the momentum of FedAvgM. The first `frozen` values are set to 0.

    References:
        Hsu, Qi and Brown, 2019 (arXiv 1909.06335), section 4.4.
    """
    moved = momentum * average  # then in place: fresh memory costs more than the sums
    moved.add_(delta, alpha=1 - momentum)
    moved[:frozen] = 0
    return moved
