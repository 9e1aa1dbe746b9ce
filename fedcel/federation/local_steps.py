"""The local steps of a round, of K clients at once: the only training loop there is."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from fedcel.errors import StackingError
from fedcel.federation.step_inputs import (
    ClientRound,
    FeatureReading,
    choose_rows,
    draw_steps,
    pass_cut,
)
from fedcel.losses import (
    Batch,
    States,
    WeightedTerm,
    join_states,
    part_states,
    refresh_terms,
    refuse_undefined_terms,
)
from fedcel.named_tensors import State
from fedcel.nets import CPU, FlatNet
from fedcel.posterior import (
    LangevinContext,
    RoundPlan,
    StepNoise,
    build_sampler,
    langevin_step,
)
from fedcel.short_repr import show_shapes
from fedcel.torch_state import use_full_precision

_SUMMARIES = {"loss": torch.mean, "clipped": torch.mean, "update-information": torch.sum}
"""Metrics of a round that are made of those of all steps."""


@show_shapes
class ClientUpdate(NamedTuple):
    """Result of a client's round; its state stays with the client.

    Attributes:
        delta: Last minus received parameters (P,).
        model: The last parameters (P,), for strategies that average weights.
        state: What the client keeps for its next round.
        metrics: Numbers of the round.
        state_round: The round whose state the client starts from the next time, 0: it keeps none.
        has_lost_state: Whether it began afresh because the state of its last round was not there.
    """

    delta: Float[Tensor, " P"]
    model: Float[Tensor, " P"]
    state: State
    metrics: dict[str, float]
    state_round: int = 0
    has_lost_state: bool = False


@show_shapes
class StepState(NamedTuple):
    """State that a step hands on to the next, besides the parameters.

    Attributes:
        states: The state of each term.
        sampler: The sampler's.
        means: Running mean (K, E) of the gradient of each term with momentum, at the E parameters
            of the device's half.
    """

    states: States
    sampler: Any
    means: Mapping[str, Float[Tensor, "K E"]] = {}


@use_full_precision()
def train_clients(
    nets: FlatNet,
    received: Float[Tensor, " P"],
    clients: Sequence[ClientRound],
    plan: RoundPlan,
) -> list[ClientUpdate]:
    """Take a round's Langevin steps from the received model, of K clients at once.

    The loss is the net's potential, by default mean cross-entropy, plus the plan's terms; priors
    pull towards the received model and 0. Steps run on the nets' device; random draws, statistics
    and results are on the CPU. The updates depend on the arguments only, and a client's not on K,
    up to the order of sums.

    Args:
        nets: K copies of the net, a workspace that is overwritten.
        received: The model that the round starts from, (P,).
        clients: What each client brings; their batches are of one size, and all or none of them
            have a state of a term.
        plan: The round, of clients that take as many steps.

    Returns:
        Each client's update, in their order. Where several are trained at once, an update that
        diverged is not finite.

    Raises:
        DivergedError: The model of a single client is not finite because of one of the terms.
        StackingError: The clients cannot be computed at once.

    References:
        Welling and Teh, ICML 2011, eq. 4.
    """
    if nets.count > 1 and (reason := name_obstacle(plan.terms)):
        raise StackingError(reason)
    states, measures = _take_steps(nets, received, clients, plan)
    models, start_model = nets.vectors.detach().to(CPU, copy=True), received.cpu()
    if plan.terms and len(clients) == 1 and not models.isfinite().all():
        # The same steps again, which raises where a term failed.
        watch = partial(refuse_undefined_terms, plan.terms)
        _take_steps(nets, received, clients, plan, watch=watch)
    return [
        ClientUpdate(model - start_model, model, state, metrics)
        for model, state, metrics in zip(models, states, measures, strict=True)
    ]


def _take_steps(
    nets: FlatNet,
    received: Float[Tensor, " P"],
    clients: Sequence[ClientRound],
    plan: RoundPlan,
    *,
    watch: Callable[[States, Batch], None] | None = None,
) -> tuple[list[State], list[dict[str, float]]]:
    """Take a round's steps; return what each client keeps, and its metrics.

    `watch` is called with the terms' states and the batch before each step.
    """
    device, terms = nets.vectors.device, plan.terms
    nets.load(received.to(device))
    streams, stored = [client.streams for client in clients], [client.state for client in clients]
    images = [client.images for client in clients]
    context = _start_chains(nets, clients, plan)
    steps_per_epoch, steps = draw_steps(nets, clients, FeatureReading(nets, images), plan)
    sampler = context.sampler.start(nets.vectors[:, context.moving], plan)
    state = StepState(join_states(terms, stored), sampler)
    refresh = partial(
        refresh_terms,
        terms,
        read_features=FeatureReading(nets, images, list(map(choose_rows, clients))).read,
        streams=streams,
        epochs=steps_per_epoch,
        device=device,
    )
    measures = []
    for step, inputs in enumerate(steps):
        state = state._replace(states=refresh(state.states, step=step))
        batch = pass_cut(nets, inputs, is_encoder_frozen=plan.is_encoder_frozen)
        if watch is not None:
            watch(state.states, batch)
        is_last = step == plan.steps - 1
        state, measured = client_step(nets, state, batch, context, measure=is_last)
        measures.append(measured)
    return part_states(terms, state.states, stored), summarise_measures(measures)


def name_obstacle(terms: Sequence[WeightedTerm]) -> str | None:
    """Name a term that keeps clients from being computed at once.

    Args:
        terms: Those of the settings, or of a round.

    Returns:
        A reason, None where all take several clients.
    """
    for weighted in terms:
        if not weighted.term.takes_stacks:
            return f"{weighted.term.title} takes one client's batch at a time"
    return None


def client_step(
    nets: FlatNet,
    state: StepState,
    batch: Batch,
    context: LangevinContext,
    *,
    measure: bool = False,
) -> tuple[StepState, dict[str, Float[Tensor, " K"]]]:
    """Move K clients' nets in place by one step: potential, terms, gradient, sampler.

    Args:
        nets: Hold the parameters, which move.
        state: State after the last step.
        batch: A batch of each client, encoded by the nets.
        context: The round's plan, and what its Langevin steps share.
        measure: Whether to compute the terms' metrics.

    Returns:
        The next state, and measurements.
    """
    terms = context.plan.terms
    potential = nets.potential(batch.smashed, batch.y)
    gradients, means, metrics = sum_gradients(
        nets, batch, potential, state, terms=terms, measure=measure
    )
    w, slopes = nets.vectors[:, context.moving], gradients[:, context.moving]
    sampler, measures = langevin_step(w, slopes, context, state.sampler)
    if isinstance(context.moving, Tensor):  # w is a copy, no view
        nets.vectors[:, context.moving] = w
    after = {w.name: w.term.update(state.states[w.name]) for w in terms}
    return StepState(after, sampler, means), metrics | measures | {"loss": potential.detach()}


def sum_gradients(
    nets: FlatNet,
    batch: Batch,
    potential: Float[Tensor, " K"],
    state: StepState,
    *,
    terms: Sequence[WeightedTerm],
    measure: bool,
) -> tuple[Float[Tensor, "K P"], dict[str, Float[Tensor, "K E"]], dict[str, Float[Tensor, " K"]]]:
    """Sum the gradients of the potential and the terms, each by its rule.

    One backward pass takes the potential and the terms without momentum. Then comes a pass for each
    other term, whose gradient, or the running mean of it, is added to the encoder's.

    Returns:
        The gradients, the next running means, which start with the round's first step, and the
        terms' metrics.
    """
    task = None
    if batch.z.requires_grad and any(weighted.rule.clip == "task" for weighted in terms):
        (task,) = torch.autograd.grad(potential.sum(), batch.z, retain_graph=True)
        task = task if batch.noise_scale is None else task * batch.noise_scale.detach()
    joint, separate = potential, []
    metrics: dict[str, Float[Tensor, " K"]] = {}
    for weighted in terms:
        loss, measures = weighted.loss(state.states[weighted.name], batch, measure, task)
        metrics |= measures
        if weighted.rule.momentum is None:
            joint = joint + loss
        else:
            separate.append((weighted, loss))
    total = nets.gradient(joint, retain_graph=bool(separate))
    if separate:
        total = total.clone()
    means = {}
    for position, (weighted, loss) in enumerate(separate):
        part = torch.zeros_like(total[:, : nets.device_size])
        if loss.requires_grad:
            is_last = position + 1 == len(separate)
            part = nets.gradient(loss, retain_graph=not is_last)[:, : nets.device_size]
        if momentum := weighted.rule.momentum:
            mean = state.means.get(weighted.name)
            part = part.clone() if mean is None else torch.lerp(part, mean, momentum)
            means[weighted.name] = part
        total[:, : nets.device_size].add_(part)
    return total, means, metrics


def _start_chains(
    nets: FlatNet, clients: Sequence[ClientRound], plan: RoundPlan
) -> LangevinContext:
    """Gather what the Langevin steps of a round share, of the parameters that move."""
    moving = nets.select_moving(is_encoder_frozen=plan.is_encoder_frozen)
    received = nets.vectors[0, moving].clone()
    return LangevinContext(
        plan=plan,
        moving=moving,
        received=received,
        noise=StepNoise(
            [client.noise for client in clients],
            [client.streams("langevin") for client in clients],
            torch.empty_like(received, device=CPU),
        ),
        sampler=build_sampler(plan.local),
    )


def summarise_measures(measures: Sequence[Mapping[str, Tensor]]) -> list[dict[str, float]]:
    """Summarise a round by client: means or sums over its steps, and the losses' last metrics.

    `measures` are, of each step, rows (K,) by name. A client lacks the metrics that are NaN.
    """
    columns = dict(measures[-1])
    for name, combine in _SUMMARIES.items():
        if name in columns:
            columns[name] = combine(torch.stack([step[name] for step in measures]), 0)
    rows: list[dict[str, float]] = [{} for _ in columns["loss"]]
    for name, column in columns.items():
        for numbers, value in zip(rows, column.tolist(), strict=True):
            if value == value or name in _SUMMARIES:
                numbers[name] = value
    return rows
