"""The server's arithmetic: weighted mean of deltas, sliding average, step."""

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from math import hypot, isfinite
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from fedcel.federation import record_names
from fedcel.losses.cel.adaptive_threshold import Control
from fedcel.losses.cel.averaged_centres import Shared, Statistics, client_spread, merged
from fedcel.settings.parsing import OWN_STRATEGY, Settings

NOT_AVERAGED = {record_names.EXAMPLES, record_names.PARTITION, record_names.ROUND}
HEAVIEST = "heaviest-update"
"""Largest weight of a round's mean over the root of the sum of all weights' squares."""
OF_A_CLASS = re.compile(r"(.+)-(0|[1-9]\d{0,3})")
"""A metric of one class, `spread-3`, and the name of its like over all classes."""


class ServerState(NamedTuple):
    """All that the next round needs of the server."""

    round: int
    model: Float[Tensor, " P"]
    average: Float[Tensor, " P"]  # m, the sliding average of deltas
    control: Control | None = None  # of an adaptive threshold
    shared: Shared | None = None  # the centres averaged over clients
    gradient: Float[Tensor, " P"] | None = None  # mean over the last round's clients, if they tell
    squares: Float[Tensor, " P"] | None = None  # of the model's speed, for a preconditioner
    examples: Mapping[int, int] | None = None  # partition -> N_k, once nodes have said it
    own: bool = False  # whether a node trained on images that are not the server's to deal


def start(
    model: Float[Tensor, " P"], control: Control | None = None, shared: Shared | None = None
) -> ServerState:
    """Return the state before round 1."""
    return ServerState(0, model.clone(), torch.zeros_like(model), control, shared)


def weighted_sum(
    deltas: Sequence[Float[Tensor, " P"]], weights: Sequence[float]
) -> Float[Tensor, " P"]:
    """Return sum_k w_k delta_k, added up in the order given so that every engine agrees."""
    total = torch.zeros_like(deltas[0])
    for delta, weight in zip(deltas, weights, strict=True):
        total.add_(delta, alpha=weight)
    return total


def mean_gradient(
    found: Mapping[int, Float[Tensor, " P"]], weights: Mapping[int, float]
) -> Float[Tensor, " P"]:
    """Return the weighted mean of clients' gradients, in the order of their partitions."""
    order = sorted(found)
    whole = sum(weights[k] for k in order)
    return weighted_sum([found[k] for k in order], [weights[k] / whole for k in order])


def realised(weights: dict[int, float], kept: list[int], noisy: bool) -> list[float]:
    """Return the weights of the kept replies' deltas.

    Without Langevin noise they are scaled to make up for those left out. With it they are not:
    the noise of each is right for its own weight, so that the sum over those kept is a Langevin
    step at the right temperature, only shorter. Scaled, it would be hotter by that scale.
    """
    share = 1.0 if noisy else sum(weights[client] for client in kept) / sum(weights.values())
    return [weights[client] / share for client in kept]


def slide(
    state: ServerState,
    delta: Float[Tensor, " P"],
    momentum: float,
    gain: float,
    frozen: int = 0,
    damped: bool = True,
) -> ServerState:
    """Return the state after m <- beta m + (1 - beta) delta; w <- w + gamma m.

    The first `frozen` parameters stay as they are, whatever the average still holds of them.
    With beta 0 and gamma 1 this is federated averaging written with deltas; undamped, with delta
    in the place of (1 - beta) delta, it is FedAvgM (Hsu, Qi and Brown, 2019, section 4.4).
    """
    average = momentum * state.average  # then in place: fresh memory costs more than the sums
    average.add_(delta, alpha=1 - momentum if damped else 1.0)
    average[:frozen] = 0
    model = torch.add(state.model, average, alpha=gain)
    return state._replace(round=state.round + 1, model=model, average=average)


def join(
    state: ServerState, told: Sequence[Statistics], clusters: int
) -> tuple[ServerState, dict[str, float]]:
    """Return the state with the clients' centres merged, and `client-spread` for the log.

    Both as they were, and nothing, where no client told any; `clusters` as in `cel.clusters`.
    """
    if state.shared is None or not told:
        return state, {}
    joined = state._replace(shared=merged(state.shared, told, clusters))
    return joined, {"client-spread": client_spread(told)}


def heaviest(settings: Settings, weights: Collection[float]) -> dict[str, float]:
    """Return what `fedcel.privacy.update_noise` accounts a round with, where updates have noise.

    1 where it is not their plain mean: a single noisy update may then decide what is taken, and
    one holder's noise may be all there is.
    """
    if not settings.update.noise:
        return {}
    rule = settings.strategy
    plain = (rule.name, rule.aggregation, rule.max_norm) == (OWN_STRATEGY, "mean", "none")
    return {HEAVIEST: max(weights) / hypot(*weights) if plain else 1.0}


def mean_metrics(told: Sequence[Mapping[str, float]], weights: Sequence[float]) -> dict[str, float]:
    """Return each metric's weighted mean over the clients that told it as a finite number.

    A metric counts where more than half of the clients told it. One of a class, `spread-3`, is told
    only by clients that saw the class: it counts where `spread` does. So a single client among
    others can add no metric of its own, and keep none away.
    """
    finite = [{k: v for k, v in one.items() if isfinite(v)} for one in told]
    tellers = Counter(key for one in finite for key in one)
    common = {key for key, n in tellers.items() if 2 * n > len(told)} - NOT_AVERAGED
    means = {}
    for key in sorted(tellers):
        like = OF_A_CLASS.fullmatch(key)
        if key in common or (like and like[1] in common):
            parts = [(w, one[key]) for w, one in zip(weights, finite, strict=True) if key in one]
            means[key] = sum(w * v for w, v in parts) / sum(w for w, _ in parts)
    return {key: value for key, value in means.items() if isfinite(value)}


def of_classes(metrics: Mapping[str, float], classes: int) -> dict[str, float]:
    """Return the metrics without those of a class, `spread-3`, that is none of so many.

    A client could else add thousands of numbers to every line of the log.
    """
    parts = {key: OF_A_CLASS.fullmatch(key) for key in metrics}
    return {k: metrics[k] for k, like in parts.items() if not like or int(like[2]) < classes}
