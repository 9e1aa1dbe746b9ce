"""One round of the server, the same for every engine and for Flower's strategy.

`play_round` is the whole of it. Flower's strategy takes its halves apart, `begin_round` before the
messages and `finish_round` after them. Nothing here reads or writes a file.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fedcel.errors import RoundError, join_first
from fedcel.federation.aggregation import (
    renormalise_weights,
    weigh_clients,
)
from fedcel.federation.client_metrics import summarise_metrics
from fedcel.federation.local_steps import ClientUpdate
from fedcel.federation.round_trainer import RoundRequest
from fedcel.losses import MetricRange
from fedcel.losses.cel import GoalControl
from fedcel.posterior import RoundOrder, RoundPlan, RoundSchedule
from fedcel.short_repr import show_shapes

HEAVIEST = "heaviest-update"
"""Metric: the largest weight of a round's mean over the root of the sum of all weights' squares."""
KEPT_SHARE = "kept-share"
"""Metric of a round in which clients were left out: the share of the asked weight that is kept."""
CLIENT_DRIFT = "client-drift"
"""Metric: the root of the clients' mean squared distance from their mean update, weighted."""
_SHOWN_REASONS = 3


@show_shapes
class ServerState(NamedTuple):
    """All that the next round needs of the server."""

    round: int
    model: Float[Tensor, " P"]
    average: Float[Tensor, " P"]
    """m, the sliding average of deltas."""
    control: GoalControl | None = None
    """The threshold or weight of a loss that follows a goal."""
    examples: Mapping[int, int] | None = None
    """Partition -> N_k, once nodes have told."""
    has_node_data: bool = False
    """Whether a node trained on images that are not the server's to deal."""
    trained: Int[Tensor, " M"] | None = None
    """Positions of the parameters that are trained; None: all are."""
    state_rounds: Mapping[int, int] = {}
    """Partition -> the round whose state it starts from, if it keeps one."""

    @property
    def threshold(self) -> float | None:
        """Threshold of the next round; None where it follows no goal."""
        control = self.control
        return control.value if control and control.steered == "threshold" else None

    @property
    def gamma(self) -> float | None:
        """Largest gamma of the next round; None where only the schedule limits it."""
        control = self.control
        return control.value if control and control.steered == "weight" else None


def init_server_state(model: Float[Tensor, " P"]) -> ServerState:
    """Make the state before round 1, where nothing follows a goal.

    Args:
        model: The first parameters, (P,).

    Returns:
        The state.
    """
    return ServerState(0, model.clone(), torch.zeros_like(model))


class ServerParts(NamedTuple):
    """Parts that the server of a run computes its rounds with, on any engine.

    Attributes:
        schedule: Makes the plan of each round.
        select: Draws the clients of a round.
        combine: Makes one delta of the clients' and their weights.
        momentum: beta of the sliding average of deltas.
        least_share: Least share of the clients' weight that a round keeps.
        metrics: The range of each metric that clients report.
        classes: The run's number of classes; None: not known.
        has_noisy_updates: Whether clients perturb their updates.
        takes_mean: Whether the mean of all updates is what is taken.
        move_control: Moves the threshold or gamma, given what round `n` measured.
    """

    schedule: RoundSchedule
    select: Callable[[int], list[int]]
    combine: Callable[[Iterable[Tensor], Sequence[float]], Tensor]
    momentum: float
    least_share: float
    metrics: Mapping[str, MetricRange]
    classes: int | None
    has_noisy_updates: bool
    takes_mean: bool
    move_control: Callable[[GoalControl, Mapping[str, float], int], GoalControl]


class Rejection(NamedTuple):
    """A client whose update is left out of a round, and why."""

    client: int
    """Its partition, -1 where nobody knows."""
    reason: str


class RoundReport(NamedTuple):
    """Participants of a round, and the clients' mean metrics."""

    clients: Sequence[int] = ()
    rejected: Sequence[Rejection] = ()
    metrics: Mapping[str, float] = {}
    plan: RoundPlan = RoundPlan()
    unused_metrics: Sequence[Rejection] = ()
    """Clients whose update is used and some of whose metrics are not, and why."""
    spread: float | None = None
    """The clients' `spread` that a threshold or weight follows; no single client decides it."""
    kept_share: float | None = None
    """Share of the weight of the clients asked that is in the model; None: each counts the same."""
    lost_states: Sequence[int] = ()
    """Clients whose update is used and that began afresh: their losses' state was not there."""
    shared_keys: Mapping[int, tuple[str, str]] = {}
    """Clients of which two nodes with one key answer: the one that is kept, the one left out."""

    @property
    def share(self) -> float:
        """Share in the model of the clients asked: of their weight, or else of their number."""
        if self.kept_share is not None:
            return self.kept_share
        requested = len(self.clients) + len(self.rejected)
        return len(self.clients) / requested if requested else 1.0


@runtime_checkable
class ClientTrainer(Protocol):
    """Trains the clients of a round."""

    def train(self, request: RoundRequest) -> Iterable[ClientUpdate]:
        """Train the clients, each when its update is taken, and keep their states.

        Updates come in the order of `request.weights`.
        """
        ...


def play_round(
    parts: ServerParts,
    state: ServerState,
    examples: Mapping[int, int],
    trainer: ClientTrainer,
    *,
    device_size: int,
) -> tuple[ServerState, RoundReport]:
    """Play one round: select and weigh clients, train them, make the next model of their updates.

    Args:
        parts: Schedules and rules.
        state: The server's state after the last round.
        examples: Partition -> N_k of all clients.
        trainer: Trains the clients.
        device_size: Parameters of the device's half, which come first.

    Returns:
        The state after the round, and who and what it is made of. `follow_goal` comes once the new
        model is scored.
    """
    request = begin_round(parts, state, examples)
    return finish_round(parts, state, request, trainer.train(request), device_size=device_size)


def begin_round(
    parts: ServerParts, state: ServerState, examples: Mapping[int, int]
) -> RoundRequest:
    """Select and weigh the clients of the coming round, and plan it.

    Args:
        parts: Schedules and rules.
        state: The server's state after the last round.
        examples: Partition -> N_k of all clients of the run.

    Returns:
        The plan, the clients and their weights, and what is sent to them.
    """
    number = state.round + 1
    weights = weigh_clients(examples, parts.select(number))
    order = RoundOrder(number, sum(examples.values()), state.threshold, state.gamma)
    state_rounds = {client: state.state_rounds.get(client, 0) for client in weights}
    return RoundRequest(parts.schedule.plan(order), state.model, weights, state_rounds)


def finish_round(
    parts: ServerParts,
    state: ServerState,
    request: RoundRequest,
    updates: Iterable[ClientUpdate],
    *,
    device_size: int,
    used: Sequence[int] | None = None,
    rejected: Sequence[Rejection] = (),
    advance: Callable[[ServerState, Tensor], ServerState] | None = None,
) -> tuple[ServerState, RoundReport]:
    """Make the next model of the clients' updates.

    Args:
        parts: Schedules and rules.
        state: The server's state that the round began with.
        request: What was asked.
        updates: Valid updates of the clients `used`, in their order; taken one by one, so that
            memory does not grow with the number of clients (a robust rule needs all at once).
        device_size: Parameters of the device's half, which come first.
        used: Clients whose updates are used, ascending; None: all that were asked.
        rejected: Clients that were left out. One that was not asked is reported only: no weight
            is missing because of it.
        advance: Makes the next state of the mean delta; None: `advance_model`.

    Returns:
        The state after the round, and who and what it is made of.

    Raises:
        RoundError: There is no update, or too few for a robust rule.
    """
    plan = request.plan
    used = list(request.weights if used is None else used)
    if not used:
        raise RoundError(
            f"no client of {len(request.weights)} gave an update that could be used in this "
            f"round; the first: {rejected[0].reason if rejected else 'no reply'}"
        )
    weights = renormalise_weights(request.weights, used, has_noise=plan.noise_variance > 0)
    collector = UpdateCollector(weights)
    delta = parts.combine(collector.pass_deltas(updates), weights)
    if advance is None:
        state = advance_model(
            parts, state, delta, frozen=device_size if plan.is_encoder_frozen else 0
        )
    else:
        state = advance(state, delta)
    written = dict(zip(used, collector.state_rounds, strict=True))
    state_rounds = {k: n for k, n in {**state.state_rounds, **written}.items() if n}
    state = state._replace(state_rounds=state_rounds)
    report = make_report(parts, request, collector, used=used, rejected=rejected)
    return state, report


def make_report(
    parts: ServerParts,
    request: RoundRequest,
    collector: "UpdateCollector",
    *,
    used: Sequence[int],
    rejected: Sequence[Rejection],
) -> RoundReport:
    """Report who is in a round's model, and the means of what they measured.

    Args:
        parts: The ranges of metrics, and how a noisy round is accounted.
        request: What was asked.
        collector: Has seen the updates of the clients `used`.
        used: Clients whose updates are in the model, ascending.
        rejected: Clients that were left out; of the weight lacks only what was asked.

    Returns:
        The report.
    """
    weights = collector.weights
    summary = summarise_metrics(collector.metrics, weights, parts.metrics, parts.classes)
    metrics = summary.means | {CLIENT_DRIFT: collector.measure_drift()}
    if parts.has_noisy_updates:
        metrics[HEAVIEST] = measure_heaviest(weights, takes_mean=parts.takes_mean)
    kept_share = 1.0
    if any(rejection.client in request.weights for rejection in rejected):
        kept_share = sum(request.weights[k] for k in used) / sum(request.weights.values())
    return RoundReport(
        clients=list(used),
        rejected=list(rejected),
        metrics=metrics,
        plan=request.plan,
        unused_metrics=[Rejection(used[k], reason) for k, reason in summary.left_out.items()],
        spread=summary.spread,
        kept_share=kept_share,
        lost_states=[used[k] for k in collector.lost_states],
    )


def measure_heaviest(weights: Sequence[float], *, takes_mean: bool) -> float:
    """Measure the heaviest update, by which `fedcel.privacy.update_noise` accounts a round.

    This is its weight over the root of the sum of all weights' squares, or 1 where the mean is not
    taken: a single noisy update may decide then, and one client's noise may be all there is.
    """
    return max(weights) / math.hypot(*weights) if takes_mean else 1.0


def advance_model(
    parts: ServerParts, state: ServerState, delta: Float[Tensor, " P"], *, frozen: int = 0
) -> ServerState:
    """Step along the sliding average: m <- beta m + (1 - beta) delta; w <- w + gamma m.

    With beta 0 and gamma 1 this is federated averaging written with deltas; m / (1 - beta) is the
    momentum of FedAvgM. A frozen encoder stays as it is, whatever the average still holds of it.

    Args:
        parts: Momentum, and the gain of the schedule.
        state: Before the step.
        delta: The round's mean delta, (P,).
        frozen: The first so many parameters stand still.

    Returns:
        The state after the round.

    References:
        Hsu, Qi and Brown, 2019 (arXiv 1909.06335), section 4.4.
    """
    average = parts.momentum * state.average  # then in place: fresh memory costs more than the sums
    average.add_(delta, alpha=1 - parts.momentum)
    average[:frozen] = 0
    return state._replace(
        round=state.round + 1,
        model=torch.add(state.model, average, alpha=parts.schedule.gain),
        average=average,
    )


def follow_goal(
    parts: ServerParts, state: ServerState, measured: Mapping[str, float], plan: RoundPlan
) -> ServerState:
    """Move an adaptive threshold or gamma after a round in which the loss acted.

    In the chain both stay: so does the chain's target.

    Args:
        parts: Schedules and rules.
        state: The server's state after the round.
        measured: The clients' `spread`, if they report it, and the new model's scores on validation
            images.
        plan: The round.

    Returns:
        The state that the next round begins with.
    """
    if state.control is None or "cel" not in plan.weights or plan.is_sampling:
        return state
    return state._replace(control=parts.move_control(state.control, measured, plan.number))


def check_kept_share(report: RoundReport, least: float, round_number: int) -> None:
    """Refuse a round in which too many clients were left out.

    Whatever the reasons: a model of a few clients is another than the one that was asked for, and
    its run must not end like one in which all took part.

    Args:
        report: Who took part.
        least: Least share of the clients' weight, `strategy.least-share`.
        round_number: The round.

    Raises:
        RoundError: A smaller share is kept than `strategy.least-share`.
    """
    share = report.share
    if share >= least:
        return
    reasons = [f"client {rejection.client}: {rejection.reason}" for rejection in report.rejected]
    raise RoundError(
        f"round {round_number} kept {share:.1%} of its clients' weight, "
        f"strategy.least-share is {least:g}; left out: "
        f"{join_first(reasons, _SHOWN_REASONS, '; ')}. Mend that, or lower strategy.least-share"
    )


class UpdateCollector:
    """Collects metrics and drift while the updates' deltas are added up, by their weights."""

    def __init__(self, weights: Sequence[float]) -> None:
        self.weights = weights
        self.metrics: list[dict[str, float]] = []
        self.state_rounds: list[int] = []
        self.lost_states: list[int] = []
        self._mean: Tensor | None = None
        self._weight = self._squares = 0.0

    def pass_deltas(self, updates: Iterable[ClientUpdate]) -> Iterator[Tensor]:
        """Yield the updates' deltas one by one, and collect what else is in each."""
        for weight, update in zip(self.weights, updates, strict=True):
            self.metrics.append(update.metrics)
            self.state_rounds.append(update.state_round)
            if update.has_lost_state:
                self.lost_states.append(len(self.state_rounds) - 1)
            self._add_to_drift(update.delta, weight)
            yield update.delta

    def measure_drift(self) -> float:
        """Measure the root mean squared distance of the updates from their mean; 0 without any."""
        return math.sqrt(self._squares / self._weight) if self._weight else 0.0

    def _add_to_drift(self, delta: Float[Tensor, " P"], weight: float) -> None:
        """Move the running mean, and add the squared distance from it: nothing cancels.

        West, CACM 1979, equations 2 and 3.
        """
        before, self._weight = self._weight, self._weight + weight
        if self._mean is None:
            self._mean = delta.clone()
            return
        gap = delta - self._mean
        self._mean.add_(gap, alpha=weight / self._weight)
        self._squares += weight * before / self._weight * float(gap.norm()) ** 2
