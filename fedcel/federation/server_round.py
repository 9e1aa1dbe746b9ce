"""One round of the server, the same for every engine and for Flower's strategy.

`begin_round` decides who trains and with which weight, `finish_round` makes the next model of the
clients' updates, `conclude_round` judges it: what the log says, whether it is a posterior sample,
where the adaptive threshold goes, whether the run may stop. Nothing here reads or writes a file.
"""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from math import hypot
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from fedcel.errors import DivergedError, RoundError
from fedcel.federation.aggregation import (
    drop_unknown_classes,
    mean_gradient,
    mean_metrics,
    renormalise_weights,
    slide_average,
)
from fedcel.federation.client_update import ClientUpdate, RoundInputs
from fedcel.federation.robust_aggregation import combine_deltas
from fedcel.losses.cel import (
    CentreStatistics,
    SharedCentres,
    ThresholdControl,
    adaptive_threshold,
    averaged_centres,
)
from fedcel.nets import SplitNet
from fedcel.posterior import Diagnosis, RoundPlan, noise_scale, nominal_temperature, round_plan
from fedcel.seeding import make_generator
from fedcel.settings import OWN_STRATEGY, Settings, burn_in_rounds

HEAVIEST = "heaviest-update"
"""Metric: the largest weight of a round's mean over the root of the sum of all weights' squares."""
_FORGET = 0.95  # of the running mean of squares, each round

Event = dict[str, object]
"""One line of the run's log."""


class ServerState(NamedTuple):
    """All that the next round needs of the server."""

    round: int
    model: Float[Tensor, " P"]
    average: Float[Tensor, " P"]
    """m, the sliding average of deltas."""
    threshold: ThresholdControl | None = None
    """Of an adaptive threshold."""
    centres: SharedCentres | None = None
    """Class centres averaged over clients."""
    gradient: Float[Tensor, " P"] | None = None
    """The mean over the last round's clients, if they send theirs."""
    squared_speed: Float[Tensor, " P"] | None = None
    """The running mean of the model's squared movement, for a preconditioner."""
    examples: Mapping[int, int] | None = None
    """Partition -> N_k, once nodes have told."""
    has_node_data: bool = False
    """Whether a node trained on images that are not the server's to deal."""


class RoundRequest(NamedTuple):
    """What the server asks in one round."""

    plan: RoundPlan
    """Of a client that holds everything."""
    weights: dict[int, float]
    """w_k of every client that takes part, by partition, ascending."""
    inputs: RoundInputs


class Rejection(NamedTuple):
    """A client whose update is left out of a round, and why."""

    client: int | str
    """Its partition, -1 where nobody knows; the name of a node under a stock strategy."""
    reason: str
    is_gone: bool = False
    """Whether it left the run, and with it what it remembers of earlier rounds."""


class RoundReport(NamedTuple):
    """Who took part in a round, and what they told."""

    clients: list[int]
    rejected: list[Rejection]
    metrics: dict[str, float]
    total_examples: int


class Scores(NamedTuple):
    """A global model on the server's validation images."""

    metrics: dict[str, float]
    functionals: Float[Tensor, " F"]
    """What the chain's convergence is judged by."""


def init_server_state(
    model: Float[Tensor, " P"],
    settings: Settings | None = None,
    net: SplitNet | None = None,
    classes: int = 0,
) -> ServerState:
    """Return the state before round 1.

    Args:
        model: The first parameters, (P,).
        settings: With them and the net, an adaptive threshold and averaged centres begin, too.
        net: The net of the run.
        classes: Its number of classes.
    """
    state = ServerState(0, model.clone(), torch.zeros_like(model))
    if settings is None or net is None:
        return state
    return state._replace(
        threshold=adaptive_threshold.init_control(settings.cel, net.cut.sigma, net.features),
        centres=averaged_centres.init_centres(settings.cel, net.features, classes),
    )


def begin_round(
    settings: Settings, state: ServerState, examples: Mapping[int, int]
) -> RoundRequest:
    """Select the clients of the coming round, weigh them, and gather what is sent to them.

    Args:
        settings: Of the run.
        state: After the last round.
        examples: Partition -> N_k of all clients of the run.
    """
    number, total = state.round + 1, sum(examples.values())
    plan = round_plan.plan_round(settings, number, 1.0, total)
    selected = round_plan.select_clients(settings, number)
    inputs = RoundInputs(
        number,
        state.model,
        total,
        threshold=state.threshold.threshold if state.threshold else None,
        centres=state.centres,
        gradient=None if plan.control == "none" else state.gradient,
        step_sizes=step_sizes(state),
    )
    return RoundRequest(plan, round_plan.client_weights(settings, dict(examples), selected), inputs)


def add_mean_gradient(
    request: RoundRequest, gradients: Mapping[int, Float[Tensor, " P"]]
) -> RoundRequest:
    """Send the clients' mean gradient at this model along with it (control variate `fresh`).

    References:
        Johnson and Zhang, NIPS 2013 (SVRG), over clients instead of examples.
    """
    gradient = mean_gradient(gradients, request.weights)
    return request._replace(inputs=request.inputs._replace(gradient=gradient))


def finish_round(
    settings: Settings,
    state: ServerState,
    request: RoundRequest,
    updates: Iterable[ClientUpdate],
    *,
    cut: int,
    used: Sequence[int] | None = None,
    rejected: Sequence[Rejection] = (),
    move: Callable[[ServerState, Tensor], ServerState] | None = None,
) -> tuple[ServerState, RoundReport]:
    """Make the next model of the clients' updates.

    Args:
        settings: Of the run.
        state: That the round began with.
        request: What was asked.
        updates: Valid updates of the clients `used`, in their order; taken one by one, so that
            memory does not grow with the number of clients (a robust rule needs all at once).
        cut: The first so many parameters are the encoder's.
        used: Clients whose updates are used, ascending; None: all that were asked.
        rejected: Clients that were left out.
        move: Makes the next state of the mean delta; None: `advance_model`.

    Returns:
        The state after the round, and who and what it is made of.

    Raises:
        RoundError: There is no update, or too few for a robust rule.
    """
    used = [*request.weights] if used is None else used
    if not used:
        raise RoundError(
            f"no client of {len(request.weights)} gave an update that could be used in this "
            f"round; the first: {rejected[0].reason if rejected else 'no reply'}"
        )
    weights = renormalise_weights(request.weights, used, request.plan.noise > 0)
    collected = _Collected(request, used)
    delta = combine_deltas(settings.strategy, collected.deltas(updates), weights)
    if rejected:
        delta = restore_shared_noise(settings, state, delta, sum(weights), request.plan)
    if move:
        state = move(state, delta)
    else:
        state = advance_model(settings, state, delta, plan=request.plan, cut=cut)
    state, metrics = merge_client_centres(state, collected.statistics, settings.cel.used_clusters)
    if request.plan.control == "stale":
        # One left out, but not gone for good, remembers a gradient that the mean would lack.
        incomplete = any(not rejection.is_gone for rejection in rejected)
        state = state._replace(gradient=None if incomplete else collected.gradient)
    metrics = mean_metrics(collected.metrics, weights) | metrics | heaviest_share(settings, weights)
    if rejected:
        kept = sum(request.weights[client] for client in used)
        metrics["kept-share"] = kept / sum(request.weights.values())
    return state, RoundReport([*used], [*rejected], metrics, request.inputs.total_examples)


class _Collected:
    """What a round keeps of the clients' updates while their deltas are added up."""

    def __init__(self, request: RoundRequest, used: Sequence[int]) -> None:
        whole = sum(request.weights[client] for client in used)
        self._shares = [request.weights[client] / whole for client in used]
        self.metrics: list[dict[str, float]] = []
        self.statistics: list[CentreStatistics] = []
        self.gradient: Tensor | None = None

    def deltas(self, updates: Iterable[ClientUpdate]) -> Iterator[Tensor]:
        for share, update in zip(self._shares, updates, strict=True):
            self.metrics.append(update.metrics)
            if update.statistics:
                self.statistics.append(update.statistics)
            if update.gradient is not None:
                if self.gradient is None:
                    self.gradient = torch.zeros_like(update.gradient)
                self.gradient.add_(update.gradient, alpha=share)
            yield update.delta


def advance_model(
    settings: Settings, state: ServerState, delta: Float[Tensor, " P"], *, plan: RoundPlan, cut: int
) -> ServerState:
    """Step along the sliding average: m <- beta m + (1 - beta) delta; w <- w + gamma m.

    With beta 0 and gamma 1 this is federated averaging written with deltas. A frozen encoder stays
    as it is, whatever the average still holds of it. The preconditioner learns until burn-in ends
    and is fixed from then on: a chain whose step sizes go on changing with its state has another
    target.

    Args:
        settings: Of the run.
        state: Before the step.
        delta: The round's mean delta, (P,).
        plan: Of the round.
        cut: The first so many parameters are the encoder's.

    Returns:
        The state after the round.
    """
    rule = settings.strategy
    average = slide_average(
        state.average,
        delta,
        rule.momentum,
        damped=rule.damped,
        frozen=cut if plan.freeze else 0,
    )
    after = state._replace(
        round=state.round + 1,
        model=torch.add(state.model, average, alpha=rule.gain),
        average=average,
    )
    is_burnt_in = state.round >= burn_in_rounds(settings)
    if settings.local.precondition == "none" or is_burnt_in:
        return after
    speed = (delta / (plan.rate * plan.steps)).square()
    before = state.squared_speed
    return after._replace(
        squared_speed=speed if before is None else torch.lerp(speed, before, _FORGET)
    )


def step_sizes(state: ServerState) -> Float[Tensor, " P"] | None:
    """Compute G = 1/(1 + r/mean r), r the root of the squared speed, scaled to mean 1.

    The speed is the model's own movement, noise and the last G included, so that G evens out less
    than gradients would; any G that is fixed leaves the chain's target as it is. The smallest
    slopes have at most twice the step of the mean one.

    Returns:
        One step size for each parameter in units of eta, (P,); None without a preconditioner.

    References:
        RMSprop's preconditioner, Li et al., AAAI 2016, eq. 6, with their lambda at the mean of r,
        which frees it of units.
    """
    if state.squared_speed is None:
        return None
    root = state.squared_speed.sqrt()
    scale = 1 / (1 + root / root.mean().clamp_min(torch.finfo(root.dtype).tiny))
    return scale / scale.mean()


def restore_shared_noise(
    settings: Settings,
    state: ServerState,
    delta: Float[Tensor, " P"],
    share: float,
    plan: RoundPlan,
) -> Float[Tensor, " P"]:
    """Add to a round's delta the shared noise that it lacks where clients were left out.

    Weights that add up to `share` make a step that much shorter, whose shared noise needs `share`
    of its variance; being the same everywhere it adds up to share^2 of it. The clients' own noise
    is right for its weights as it is.
    """
    if not plan.common or share >= 1:
        return delta
    scale = step_sizes(state)
    g = torch.ones(()) if scale is None else scale
    # A step's noise is pulled back by those after it, by the priors at least.
    q = 1 - plan.rate * (plan.pull + plan.decay) * g
    remaining = sum(q ** (2 * step) for step in range(plan.steps))
    deviation = 1.0 if scale is None else noise_scale(scale, plan)
    xi = torch.randn(delta.shape, generator=make_generator(settings.seed, "lost", state.round + 1))
    return delta + plan.common * math.sqrt(share * (1 - share)) * deviation * remaining**0.5 * xi


def merge_client_centres(
    state: ServerState, centres: Sequence[CentreStatistics], clusters: int
) -> tuple[ServerState, dict[str, float]]:
    """Merge the clients' class centres into the state; `client-spread` is for the log.

    The state stays as it is, and there is nothing to log, where no client sent any.
    """
    if state.centres is None or not centres:
        return state, {}
    merged = averaged_centres.merge_centres(state.centres, centres, clusters)
    return state._replace(centres=merged), {
        "client-spread": averaged_centres.client_spread(centres)
    }


def heaviest_share(settings: Settings, weights: Collection[float]) -> dict[str, float]:
    """Return what `fedcel.privacy.update_noise` accounts a round with, where updates have noise.

    1 where the round is not their plain mean: a single noisy update may then decide what is taken,
    and one client's noise may be all there is.
    """
    if not settings.update.noise:
        return {}
    rule = settings.strategy
    is_plain = (rule.name, rule.aggregation, rule.max_norm) == (OWN_STRATEGY, "mean", "none")
    return {HEAVIEST: max(weights) / hypot(*weights) if is_plain else 1.0}


def describe_round(
    settings: Settings,
    state: ServerState,
    report: RoundReport,
    scores: Scores,
    *,
    classes: int,
    diagnosis: Diagnosis | None,
    seconds: float,
) -> Event:
    """Write the line of the log about the round that led to `state`.

    Raises:
        DivergedError: A score is not finite, though the model is.
    """
    plan = round_plan.plan_round(settings, state.round, 1.0, report.total_examples)
    event: Event = {
        # First: what clients tell never replaces what the server measured.
        **drop_unknown_classes(report.metrics, classes),
        "round": state.round,
        **scores.metrics,
        "clients": len(report.clients),
        "rejected": [{"client": r.client, "reason": r.reason} for r in report.rejected],
        "rate": plan.rate,
        "temperature": plan.temperature,
        "cel-weight": plan.cel_weight,
        "nominal-temperature": nominal_temperature(plan),
        "pull": plan.rate * plan.pull,
        "seconds": seconds,
    }
    if state.threshold:
        event["cel-threshold"] = state.threshold.threshold
    if diagnosis:
        event |= {"r-hat": diagnosis.r_hat, "ess": diagnosis.ess, "geweke": diagnosis.geweke}
    undefined = [k for k, v in event.items() if isinstance(v, float) and not math.isfinite(v)]
    if undefined:
        raise DivergedError(
            f"{', '.join(undefined)} are not finite after round {state.round}, though the model "
            f"is; lower local.rate ({settings.local.rate})"
        )
    return event


def move_threshold(
    settings: Settings, state: ServerState, report: RoundReport, scores: Scores
) -> ServerState:
    """Move an adaptive threshold after a round in which the loss acted.

    One that follows the accuracy waits until the ramp's end: early on, the model is merely young,
    and a threshold that rose for it would have to come all the way back. In the chain it stays:
    so does the chain's target.
    """
    cel = settings.cel
    is_young = cel.target == "accuracy" and state.round < cel.ramp * settings.rounds
    is_burnt_in = state.round > burn_in_rounds(settings)
    plan = round_plan.plan_round(settings, state.round, 1.0, report.total_examples)
    if state.threshold is None or not plan.cel_acts or is_young or is_burnt_in:
        return state
    measured = {**report.metrics, **scores.metrics}
    return state._replace(
        threshold=adaptive_threshold.next_threshold(state.threshold, measured, cel)
    )


def is_sample_due(
    settings: Settings, number: int, sampled: Sequence[int], autocorrelation: int | None
) -> bool:
    """Say whether the model after a round is to be kept as a posterior sample.

    Rounds are counted from the last sample; the first round of the chain is one. Where the
    autocorrelation time decides, nothing is kept until it is known.

    Args:
        settings: Of the run.
        number: The round.
        sampled: Rounds of the samples kept so far, ascending.
        autocorrelation: In rounds; None: not known yet.
    """
    apart = settings.chain.thin or autocorrelation
    if apart is None or not round_plan.is_kept(settings, number):
        return False
    return not sampled or number - sampled[-1] >= apart


def may_stop(settings: Settings, diagnosis: Diagnosis | None) -> bool:
    """Say whether the run may stop: it is asked to, and nothing speaks against convergence."""
    return settings.chain.stop and diagnosis is not None and diagnosis.passes
