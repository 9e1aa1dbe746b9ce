"""The server's arithmetic: weighted mean of deltas, sliding average, step."""

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from fedcel import wire

NOT_AVERAGED = {wire.EXAMPLES, wire.PARTITION}


class ServerState(NamedTuple):
    """All that the next round needs of the server."""

    round: int
    model: Float[Tensor, " P"]
    average: Float[Tensor, " P"]  # m, the sliding average of deltas


def start(model: Float[Tensor, " P"]) -> ServerState:
    """Return the state before round 1."""
    return ServerState(0, model.clone(), torch.zeros_like(model))


def weighted_sum(
    deltas: Sequence[Float[Tensor, " P"]], weights: Sequence[float]
) -> Float[Tensor, " P"]:
    """Return sum_k w_k delta_k, added up in the order given so that every engine agrees."""
    total = torch.zeros_like(deltas[0])
    for delta, weight in zip(deltas, weights, strict=True):
        total.add_(delta, alpha=weight)
    return total


def topped_up(weights: dict[int, float], kept: list[int]) -> list[float]:
    """Return the kept replies' weights, scaled to make up for those left out."""
    scale = sum(weights.values()) / sum(weights[client] for client in kept)
    return [weights[client] * scale for client in kept]


def slide(
    state: ServerState,
    delta: Float[Tensor, " P"],
    momentum: float,
    gain: float,
    frozen: int = 0,
) -> ServerState:
    """Return the state after m <- beta m + (1 - beta) delta; w <- w + gamma m.

    The first `frozen` parameters stay as they are, whatever the average still holds of them.
    With beta 0 and gamma 1 this is federated averaging written with deltas.
    """
    average = momentum * state.average + (1 - momentum) * delta
    average[:frozen] = 0
    return ServerState(state.round + 1, state.model + gain * average, average)


def mean_metrics(told: Sequence[Mapping[str, float]], weights: Sequence[float]) -> dict[str, float]:
    """Return the weighted means of the metrics that all clients told as finite numbers."""
    shared = set.intersection(*(set(metrics) for metrics in told)) - NOT_AVERAGED
    means = {
        key: sum(w * float(m[key]) for w, m in zip(weights, told, strict=True)) / sum(weights)
        for key in sorted(shared)
    }
    return {key: value for key, value in means.items() if isfinite(value)}
