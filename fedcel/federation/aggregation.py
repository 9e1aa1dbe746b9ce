"""The server's arithmetic: selection and weights of clients, means and medians of their deltas."""

from collections.abc import Collection, Iterable, Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from fedcel.errors import RoundError
from fedcel.torch_state import make_generator

_HALF = 0.5 - 1e-9  # of the weight, less the rounding of a sum
_BLOCK = 2**16  # parameters sorted at once
_MIN_DELTAS = 3
_MAX_PASSES = 100
_SMOOTHING = 1e-6  # Pillutla et al.'s nu, in units of the median distance
_TOLERANCE = 1e-9  # a pass that moves the centre by less, in the same units, is the last


def select_clients(seed: int, clients: int, per_round: int, number: int) -> list[int]:
    """Draw the clients that train in a round.

    Args:
        seed: The run's.
        clients: Clients of the run.
        per_round: Clients drawn; 0: all.
        number: The round, from 1.

    Returns:
        Their partitions, ascending.
    """
    if per_round in (0, clients):
        return list(range(clients))
    order = torch.randperm(clients, generator=make_generator(seed, "clients", number))
    return sorted(order[:per_round].tolist())


def weigh_clients(examples: Mapping[int, int], selected: Collection[int]) -> dict[int, float]:
    """Compute the weights of the clients that take part in a round; unbiased over the draw.

    Args:
        examples: Partition -> N_k of all K clients.
        selected: The m that take part.

    Returns:
        Partition -> w_k = (K/m) N_k/N.
    """
    total = sum(examples.values())
    scale = len(examples) / len(selected)
    return {client: scale * examples[client] / total for client in selected}


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
