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
    """Compute the weights of the clients whose updates are used in a round.

    Without Langevin noise the weights are scaled to make up for clients left out. With it they are
    not: the noise of each client is right for its own weight, so that the sum over those used is a
    Langevin step at the right temperature, only shorter. Scaled, it would be hotter by that scale.

    Args:
        weights: w_k of every client that was asked.
        used: The clients whose updates are used.
        has_noise: Whether the clients add Langevin noise in this round.

    Returns:
        One weight for each client of `used`, in its order.
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
    """Move the sliding average of deltas: m <- beta m + (1 - beta) delta.

    Times 1/(1 - beta) it is the momentum of FedAvgM.

    Args:
        average: m before, (P,).
        delta: The round's mean delta, (P,).
        momentum: beta in [0, 1).
        frozen: The first so many values of the average are set to 0.

    Returns:
        m after, (P,).

    References:
        Hsu, Qi and Brown, 2019 (arXiv 1909.06335), section 4.4.
    """
    moved = momentum * average  # then in place: fresh memory costs more than the sums
    moved.add_(delta, alpha=1 - momentum)
    moved[:frozen] = 0
    return moved
