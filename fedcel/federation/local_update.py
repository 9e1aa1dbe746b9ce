"""The local update: the only training loop there is."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from fedcel.data import Images, augment_images
from fedcel.errors import StackingError
from fedcel.losses import NO_LOSSES, Batch, Losses, Streams, composite, stack_losses
from fedcel.losses.cel import FeatureBatches, StackedFeatures, State
from fedcel.nets import (
    CPU,
    FlatNet,
    StackedNet,
    fastest_device,
    place_state,
    use_full_precision,
)
from fedcel.posterior import (
    LangevinContext,
    LangevinMeasures,
    RoundPlan,
    build_sampler,
    langevin_step,
    moving_parameters,
    stack_contexts,
)
from fedcel.settings import LocalSettings
from fedcel.short_repr import summarise_record

_MIN_MEMBERS = 2  # members without which a class has no spread
_VALUES_AT_ONCE = 2**22  # values of images gathered and augmented at once
_IMAGES_AT_ONCE = 1024  # images encoded at once for the statistics of a loss


class LocalUpdate(NamedTuple):
    """What a client's round of local steps gives."""

    delta: Float[Tensor, " P"]
    """Last minus received parameters."""
    model: Float[Tensor, " P"]
    """The last parameters."""
    state: State
    """The losses' state after the round."""
    metrics: dict[str, float]

    def __repr__(self) -> str:
        """Show shapes in the place of numbers."""
        return summarise_record(self)


class ClientRound(NamedTuple):
    """What one client brings to its round; see `local_update`."""

    images: Images
    plan: RoundPlan
    streams: Streams
    losses: Losses = NO_LOSSES
    state: State | None = None
    control_variate: Float[Tensor, " P"] | None = None
    """The clients' mean gradient less the client's own, added to each of its gradients."""


class StackedImages(NamedTuple):
    """All images of several clients, each client's filled up to as many as the most have."""

    x: Float[Tensor, "K n ..."]
    """Where the steps are taken, as `is_image`."""
    is_image: Bool[Tensor, "K n"]
    y: Int[Tensor, " N"]
    """The labels of what is an image, client after client, on the processor."""
    client: Int[Tensor, " N"]
    """Whose each is, from 0, on the processor."""


class PreparedRound(NamedTuple):
    """What all steps of a client's round share, on the device where they are taken.

    Of K clients at once each step's tensors are of all of them, (K, b, ...), and `rows` holds what
    each has for itself; a tensor of all steps is (K, steps, ...), each client's part in one piece.
    """

    flat: FlatNet
    """The net, whose parameters the steps of one client move."""
    images: Images
    """All of the client's images."""
    plan: RoundPlan
    losses: Losses
    streams: Streams
    labels: Int[Tensor, "*k steps b"]
    """Each step's labels."""
    batch_inputs: Iterator[Float[Tensor, "..."]]
    """The images of some steps in a row, augmented; their features where the encoder is frozen."""
    mask: Bool[Tensor, "*k steps b D"] | None
    """What the cut keeps of the features."""
    cut_noise: Float[Tensor, "*k steps b D"] | None
    """What the cut adds to the features."""
    langevin: LangevinContext
    refresh_period: int
    """Steps between two refreshes of the CEL's statistics; 0: none after the first."""
    rows: "Sequence[PreparedRound]" = ()
    """Of several clients at once: the round of each."""
    stacked: StackedNet | None = None
    """Of several clients at once: their nets, whose parameters the steps move."""
    all_images: StackedImages | None = None
    """Of several clients at once, where the CEL computes their statistics at once."""

    @property
    def moved(self) -> FlatNet | StackedNet:
        """The net whose parameters the steps move."""
        return self.stacked or self.flat

    def is_refresh_due(self, step: int) -> bool:
        """Say whether the CEL's statistics are computed anew before a step."""
        return bool(step and self.refresh_period and step % self.refresh_period == 0)


class StepState(NamedTuple):
    """What a step hands on to the next, besides the parameters."""

    losses: State
    sampler: State
    cel_gradient: Float[Tensor, "*k E"] | None = None
    """The running mean of the CEL's gradient at the E parameters of the device's half."""


class StepMeasures(NamedTuple):
    """What is measured in a step."""

    potential: Float[Tensor, "*k"]
    langevin: LangevinMeasures
    metrics: Sequence[Mapping[str, Tensor]]
    """The losses' own of each client, in the last step alone."""


@use_full_precision()
def local_update(
    flat: FlatNet,
    received: Float[Tensor, " P"],
    images: Images,
    *,
    plan: RoundPlan,
    local: LocalSettings,
    streams: Streams,
    losses: Losses = NO_LOSSES,
    state: State | None = None,
    refresh_every: int = 0,
    control_variate: Float[Tensor, " P"] | None = None,
) -> LocalUpdate:
    """Take `local.steps` Langevin steps from the received model.

    The loss is the net's potential, mean cross-entropy as a rule, and the losses given; priors pull
    towards the received model and 0. Depends on its arguments alone; `flat` is overwritten as a
    workspace. Steps are taken on the net's fastest device; draws and statistics are made on the
    processor, where all that is returned is.

    Args:
        flat: The net to work with; its parameters do not matter.
        received: The model that the round starts from, (P,).
        images: The client's images (N, C, H, W) in [0, 1] and their labels (N,).
        plan: Step size, noise, priors and weights of the round.
        local: Steps, batch size, sampler, augmentation.
        streams: Random streams of this client and round, by purpose.
        losses: What is added to the potential.
        state: The losses' state after the client's last round; None before its first.
        refresh_every: Local epochs between two refreshes of the CEL's statistics; 0: they are
            computed at the start alone.
        control_variate: Added to each gradient, (P,).

    Returns:
        Delta, model, the losses' state and metrics of the round.

    Raises:
        DivergedError: The model is not finite because of one of the losses.

    References:
        Welling and Teh, ICML 2011, eq. 4.
    """
    device = fastest_device(flat.net)
    flat = flat if device == CPU else flat.copy_to(device)
    received = received.to(device)
    flat.load(received)
    client = ClientRound(images, plan, streams, losses, state, control_variate)

    def begin_round() -> PreparedRound:
        return _prepare_round(flat, received, client, local=local, refresh_every=refresh_every)

    prepared = begin_round()
    step_state, measures = _take_steps(prepared, _start_round(prepared, state))
    if losses.acts and not flat.vector.isfinite().all():
        # The same steps once more, with a look at the losses before each.
        flat.load(received)
        prepared = begin_round()
        _take_steps(prepared, _start_round(prepared, state), inspect=True)
    (metrics,) = _summarise(measures)
    return LocalUpdate(
        (flat.vector - received).cpu(),
        flat.vector.detach().to(CPU, copy=True),
        place_state(step_state.losses, CPU),
        metrics,
    )


@use_full_precision()
def local_updates(
    flat: FlatNet,
    stacked: StackedNet,
    received: Float[Tensor, " P"],
    clients: Sequence[ClientRound],
    *,
    local: LocalSettings,
    refresh_every: int = 0,
) -> list[LocalUpdate]:
    """Take the steps of several clients at once, each as `local_update` would, up to rounding.

    That is of each step: at the edge of stability later steps multiply it to any size.
    Random streams, batches and order of steps are those of `local_update`. The losses of all
    clients are those of the first, and their batches are of one size.

    Args:
        flat: The net to work with, on the device where the steps are taken.
        stacked: Copies of it, as many as there are clients.
        received: The model that the round starts from, (P,).
        clients: What each client brings.
        local: Steps, batch size, sampler, augmentation.
        refresh_every: As of `local_update`.

    Returns:
        Each client's update, in their order; one that diverged is not finite.

    Raises:
        StackingError: The clients cannot be computed at once.
    """
    received = received.to(flat.vector.device)
    flat.load(received)
    rows = [
        _prepare_round(flat, received, client, local=local, refresh_every=refresh_every)
        for client in clients
    ]
    prepared = _stack_rounds(stacked, rows)
    stacked.load(received)
    loss_state = _start_rows(prepared, [client.state for client in clients])
    moving = stacked.vector[:, prepared.langevin.moving]
    start = StepState(loss_state, prepared.langevin.sampler.start(moving, prepared.plan))
    step_state, measures = _take_steps(prepared, start)
    models = stacked.vector.detach().to(CPU, copy=True)
    states = place_state(step_state.losses, CPU)
    return [
        LocalUpdate(models[k] - received.cpu(), models[k], select_row(states, k), metrics)
        for k, metrics in enumerate(_summarise(measures))
    ]


def _stack_rounds(stacked: StackedNet, rows: Sequence[PreparedRound]) -> PreparedRound:
    """Return the rounds of several clients as one."""
    first = rows[0]
    mask, cut_noise = (
        None if parts[0] is None else torch.stack(parts)
        for parts in zip(*((row.mask, row.cut_noise) for row in rows), strict=True)
    )
    inputs = zip(*(row.batch_inputs for row in rows), strict=True)
    return first._replace(
        stacked=stacked,
        losses=stack_losses(first.losses),
        labels=torch.stack([row.labels for row in rows]),
        batch_inputs=(torch.stack(parts) for parts in inputs),
        mask=mask,
        cut_noise=cut_noise,
        langevin=stack_contexts([row.langevin for row in rows]),
        rows=rows,
        all_images=_stack_images([row.images for row in rows], first),
    )


def _stack_images(images: Sequence[Images], first: PreparedRound) -> StackedImages | None:
    """Return the clients' images in one tensor, None where it is of no use or too large."""
    sizes = torch.tensor([len(part.y) for part in images])
    most = int(sizes.max())
    values = len(images) * most * images[0].x[0].numel()
    is_large = most > _IMAGES_AT_ONCE or values > _VALUES_AT_ONCE
    if is_large or not composite.can_refresh_stack(first.losses):
        return None
    x = images[0].x.new_zeros(len(images), most, *images[0].x.shape[1:])
    for row, part in zip(x, images, strict=True):
        row[: len(part.y)] = part.x
    return StackedImages(
        x,
        (torch.arange(most) < sizes[:, None]).to(x.device),
        torch.cat([part.y for part in images]).cpu(),
        torch.arange(len(images)).repeat_interleave(sizes),
    )


def _start_rows(prepared: PreparedRound, states: Sequence[State | None]) -> State:
    """Return the losses' states of several clients before the first step."""
    pairs = list(zip(prepared.rows, states, strict=True))
    if all(state for state in states):
        stored = stack_states(
            [
                composite.start_losses(
                    row.losses._replace(cel=None), state, lambda: iter(()), row.streams
                )
                for row, state in pairs
            ]
        )
        refreshed = _refresh_at_once(prepared, stored)
        if refreshed is not None:
            return refreshed
    return stack_states([_start_round(row, state).losses for row, state in pairs])


def _refresh_at_once(prepared: PreparedRound, state: State) -> State | None:
    """Compute the CEL's statistics of several clients anew, None where that cannot be at once.

    On the processor, as those of one client; what is returned is where the steps are taken.
    """

    def read_features() -> StackedFeatures | None:
        if prepared.all_images is None:
            return None
        x, is_image, y, client = prepared.all_images
        net = prepared.moved.net
        with torch.no_grad():
            return StackedFeatures(net.whiten(net.encode(x))[is_image].cpu(), y, client)

    refreshed = composite.refresh_stack(prepared.losses, place_state(state, CPU), read_features)
    device = prepared.moved.vector.device
    return None if refreshed is None else place_state(refreshed, device)


def _prepare_round(
    flat: FlatNet,
    received: Float[Tensor, " P"],
    client: ClientRound,
    *,
    local: LocalSettings,
    refresh_every: int,
) -> PreparedRound:
    """Draw the round's batches and noise at the cut, and gather what its steps share."""
    plan, streams, device = client.plan, client.streams, received.device
    images = Images(client.images.x.to(device), client.images.y.to(device))
    batch_settings, inputs = local, images.x
    if plan.is_encoder_frozen:
        # Balanced batches would change the sampled posterior, so they stop once the encoder is
        # frozen.
        batch_settings = local.model_copy(update={"balance": False, "augment": "none"})
        inputs = _encode(flat, images.x)
    batches = draw_batches(images.y.cpu(), batch_settings, streams("batch")).to(images.y.device)
    mask, cut_noise = _draw_cut_noise(flat, batches, streams("cut"))
    epoch_steps = -(-len(images.y) // batches.shape[1])
    return PreparedRound(
        flat,
        images,
        plan=plan,
        losses=client.losses,
        streams=streams,
        labels=images.y[batches],
        batch_inputs=_gather_batches(inputs, batches, batch_settings.augment, streams("augment")),
        mask=mask,
        cut_noise=cut_noise,
        langevin=_make_langevin_context(
            flat,
            received,
            plan=plan,
            local=local,
            streams=streams,
            control_variate=client.control_variate,
        ),
        refresh_period=refresh_every * epoch_steps,
    )


def _make_langevin_context(
    flat: FlatNet,
    received: Float[Tensor, " P"],
    *,
    plan: RoundPlan,
    local: LocalSettings,
    streams: Streams,
    control_variate: Float[Tensor, " P"] | None,
) -> LangevinContext:
    """Gather what the Langevin steps of a round share, of the parameters that move."""
    moving = moving_parameters(flat, plan.is_encoder_frozen)
    if control_variate is not None:
        control_variate = control_variate[moving].to(received.device)
    return LangevinContext(
        plan=plan,
        moving=moving,
        received=received[moving],
        control_variate=control_variate,
        client_stream=streams("langevin"),
        noise_buffer=torch.empty_like(flat.vector[moving], device=CPU),
        sampler=build_sampler(local),
    )


def _start_round(prepared: PreparedRound, state: State | None) -> StepState:
    """Make the state before the first step, the losses' from what the client kept."""
    flat = prepared.flat
    features = encode_in_pieces(flat, prepared.images)
    loss_state = composite.start_losses(prepared.losses, state, features, prepared.streams)
    moving = flat.vector[prepared.langevin.moving]
    return StepState(
        place_state(loss_state, flat.vector.device),
        prepared.langevin.sampler.start(moving, prepared.plan),
    )


def _take_steps(
    prepared: PreparedRound, step_state: StepState, *, inspect: bool = False
) -> tuple[StepState, list[StepMeasures]]:
    """Take all steps of a round; DivergedError if one is to be inspected and a loss undefined."""
    measures = []
    step_axis = 1 if prepared.rows else 0
    batches = chain.from_iterable(part.unbind(step_axis) for part in prepared.batch_inputs)
    for step, inputs in enumerate(batches):
        step_state, measured = _take_step(prepared, step_state, step, inputs, inspect=inspect)
        measures.append(measured)
    return step_state, measures


def _take_step(
    prepared: PreparedRound,
    state: StepState,
    step: int,
    inputs: Float[Tensor, "..."],
    *,
    inspect: bool,
) -> tuple[StepState, StepMeasures]:
    """Compute the losses' gradient on a batch, and move the parameters by it."""
    moved, losses = prepared.moved, prepared.losses
    is_last = step == prepared.labels.shape[-2] - 1
    loss_state = _refresh_losses(prepared, state.losses, step)
    batch = _pass_cut(prepared, step, inputs)
    loss = moved.net.potential(moved.net.answer(batch.smashed), batch.y)
    potential = loss.detach()
    metrics: Sequence[Mapping[str, Tensor]] = ()
    if inspect:
        composite.refuse_undefined_terms(losses, loss_state, batch)
    separate_loss = None
    if losses.acts:
        measures_at_once = not prepared.rows or composite.takes_stacks(losses)
        measure = is_last and measures_at_once
        joint, separate = losses.split_passes()
        term = composite.add_losses(joint, loss_state, batch, measure)
        measured = term.metrics
        loss = loss + term.loss
        if separate.acts:
            term = composite.add_losses(separate, loss_state, batch, measure)
            separate_loss, measured = term.loss, term.metrics | measured
        if is_last and not measures_at_once:
            metrics = _measure_rows(prepared, loss_state, batch)
        elif is_last:
            metrics = split_metrics(measured, len(prepared.rows))
    cel_gradient = state.cel_gradient
    if separate_loss is None:
        moved.backward(loss)
    else:
        cel_gradient = _backward_in_two_passes(
            moved, loss, separate_loss, momentum=losses.cel_momentum, mean=cel_gradient
        )
    sampler_state, langevin = langevin_step(moved, prepared.langevin, state.sampler)
    if losses.acts:
        loss_state = composite.step_losses(losses, loss_state, batch)
    return (
        StepState(loss_state, sampler_state, cel_gradient),
        StepMeasures(potential, langevin, metrics),
    )


def _backward_in_two_passes(
    moved: FlatNet | StackedNet,
    loss: Float[Tensor, "*k"],
    cel_loss: Float[Tensor, "*k"],
    *,
    momentum: float,
    mean: Float[Tensor, "*k E"] | None,
) -> Float[Tensor, "*k E"] | None:
    """Fill the gradient: the loss's, and in the device's half the CEL's or its running mean.

    Returns that mean, which starts with the round's first step; None without momentum.
    """
    has_signal = cel_loss.requires_grad
    moved.backward(loss, retain_graph=has_signal)
    joint = moved.gradient.clone()
    cel_gradient = torch.zeros_like(joint[..., : moved.cut])
    if has_signal:
        moved.backward(cel_loss)
        cel_gradient = moved.gradient[..., : moved.cut].clone()
    if mean is not None:
        cel_gradient = torch.lerp(cel_gradient, mean, momentum)
    moved.gradient.copy_(joint)
    moved.gradient[..., : moved.cut].add_(cel_gradient)
    return cel_gradient if momentum else None


def _measure_rows(
    prepared: PreparedRound, state: State, batch: Batch
) -> list[Mapping[str, Tensor]]:
    """Return the losses' metrics of each of several clients at once: which there are differs."""
    with torch.no_grad():
        return [
            composite.add_losses(
                row.losses._replace(clip=None),
                select_row(state, k),
                batch.select_client(k),
                measure=True,
            ).metrics
            for k, row in enumerate(prepared.rows)
        ]


def split_metrics(metrics: Mapping[str, Tensor], count: int) -> list[Mapping[str, Tensor]]:
    """Return the metrics of each of several clients, those alone that it has; of one at 0."""
    if not count:
        return [metrics]
    columns = {name: (value.unbind(), value.isnan().tolist()) for name, value in metrics.items()}
    return [
        {name: values[k] for name, (values, is_left_out) in columns.items() if not is_left_out[k]}
        for k in range(count)
    ]


def _refresh_losses(prepared: PreparedRound, state: State, step: int) -> State:
    """Compute the CEL's statistics anew where that is due, on the processor."""
    if prepared.stacked:
        return _refresh_rows(prepared.stacked, prepared, state, step)
    if not prepared.is_refresh_due(step):
        return state
    features = encode_in_pieces(prepared.flat, prepared.images)
    refreshed = composite.refresh_losses(
        prepared.losses, place_state(state, CPU), features, prepared.streams, step=step
    )
    return place_state(refreshed, prepared.flat.vector.device)


def _refresh_rows(stacked: StackedNet, prepared: PreparedRound, state: State, step: int) -> State:
    """Compute the CEL's statistics anew of those of several clients that are due."""
    is_due = [row.is_refresh_due(step) for row in prepared.rows]
    if not any(is_due):
        return state
    refreshed = _refresh_at_once(prepared, state)
    if refreshed is not None:
        chosen = torch.tensor(is_due, device=stacked.vector.device)
        return {
            name: _choose_rows(chosen, refreshed[name], tensor) for name, tensor in state.items()
        }
    states = []
    for k, row in enumerate(prepared.rows):
        row_state = select_row(state, k)
        if row.is_refresh_due(step):
            row.flat.load(stacked.vector[k])
            row_state = _refresh_losses(row, row_state, step)
        states.append(row_state)
    return stack_states(states)


def _choose_rows(is_new: Bool[Tensor, " K"], new: Tensor, old: Tensor) -> Tensor:
    """Return the rows of one tensor or of another; what learns is a leaf again."""
    if new is old:
        return old
    rows = is_new.view(-1, *[1] * (old.dim() - 1))
    return torch.where(rows, new.detach(), old.detach()).requires_grad_(old.requires_grad)


def stack_states(states: Sequence[State]) -> State:
    """Join the states of several clients: each tensor gets a first dimension, a client a row.

    Raises:
        StackingError: They are not of the same names and shapes.
    """
    shapes = [{name: tensor.shape for name, tensor in state.items()} for state in states]
    if any(shape != shapes[0] for shape in shapes):
        raise StackingError("the clients' states are of different shapes")
    return {
        name: torch.stack([state[name].detach() for state in states]).requires_grad_(
            tensor.requires_grad
        )
        for name, tensor in states[0].items()
    }


def select_row(state: State, row: int) -> State:
    """Return one client's state of several."""
    return {
        name: tensor.detach()[row].clone().requires_grad_(tensor.requires_grad)
        for name, tensor in state.items()
    }


def _pass_cut(prepared: PreparedRound, step: int, inputs: Float[Tensor, "..."]) -> Batch:
    """Encode a step's inputs, unless they are features already, and add the cut's noise."""
    z = inputs if prepared.plan.is_encoder_frozen else prepared.moved.net.encode(inputs)
    scale = prepared.moved.net.scale_noise(z)
    smashed = z if prepared.mask is None else z * prepared.mask.select(-3, step)
    if prepared.cut_noise is not None:
        noise = prepared.cut_noise.select(-3, step)
        smashed = smashed + (noise if scale is None else noise * scale)
    return Batch(inputs, z, smashed, prepared.labels.select(-2, step), scale)


def _summarise(measures: Sequence[StepMeasures]) -> list[dict[str, float]]:
    """Return each client's numbers: of the losses, the mean potential, the Langevin steps'."""
    potentials = torch.stack([step.potential for step in measures]).mean(0)
    langevin = [step.langevin for step in measures]
    clipped = [step.was_clipped for step in langevin if step.was_clipped is not None]
    information = [step.information for step in langevin if step.information is not None]
    rows = [
        {key: value.item() for key, value in metrics.items()}
        for metrics in measures[-1].metrics or [{} for _ in potentials.view(-1)]
    ]
    for name, values in {
        "loss": potentials,
        **({"clipped": torch.stack(clipped).mean(0)} if clipped else {}),
        **({"update-information": torch.stack(information).sum(0)} if information else {}),
    }.items():
        for numbers, value in zip(rows, values.view(-1).tolist(), strict=True):
            numbers[name] = value
    return rows


def compute_full_gradient(
    flat: FlatNet,
    received: Float[Tensor, " P"],
    images: Images,
    *,
    streams: Streams,
    is_encoder_frozen: bool = False,
) -> Float[Tensor, " P"]:
    """Compute the gradient at the received model of the mean potential of all a client's images.

    One draw of the cut's noise for each image, of a stream of its own; neither added losses nor
    priors.

    Args:
        flat: The net to work with; its parameters do not matter.
        received: The model, (P,).
        images: The client's images (N, C, H, W) in [0, 1] and their labels (N,).
        streams: Random streams of this client and round, by purpose.
        is_encoder_frozen: Nobody needs to see the gradient of a frozen encoder, which is 0.

    Returns:
        The gradient, (P,).
    """
    flat.load(received)
    flat.gradient.zero_()
    noise = streams("control")
    for x, y in _split_images(images):
        smashed = flat.net.add_noise(flat.net.encode(x), noise)
        loss = flat.net.potential(flat.net.answer(smashed), y)
        torch.autograd.backward(loss * (len(y) / len(images.y)))
    gradient = torch.zeros_like(flat.gradient)
    moving = moving_parameters(flat, is_encoder_frozen)
    gradient[moving] = flat.gradient[moving]
    return gradient


def draw_batches(
    y: Int[Tensor, " N"], local: LocalSettings, generator: torch.Generator
) -> Int[Tensor, "steps b"]:
    """Draw each step's batch: shuffled epochs in a row, cut into equal pieces.

    Balanced: each class has its own shuffled epochs and the same number of places in every batch,
    at least two, without which a class has no spread: a batch can be larger than asked for, and
    rare classes come round sooner.

    Args:
        y: The client's labels, (N,).
        local: Steps, batch size, and whether batches are balanced.
        generator: Draws the batches.

    Returns:
        Positions of images, one row a step.
    """
    size = count_batch_images(y, local)
    if not local.balance:
        return _shuffle_epochs(torch.arange(len(y)), local.steps, size, generator)
    classes = torch.unique(y)
    per_class = size // len(classes)
    parts = [
        _shuffle_epochs(torch.eq(y, label).nonzero()[:, 0], local.steps, per_class, generator)
        for label in classes
    ]
    return torch.cat(parts, 1)


def count_batch_images(
    y: Int[Tensor, " N"], local: LocalSettings, *, is_encoder_frozen: bool = False
) -> int:
    """Compute how many images a client's batch holds.

    Args:
        y: The client's labels, (N,).
        local: Batch size, and whether batches are balanced.
        is_encoder_frozen: Whether the encoder stands still: then none is balanced.

    Returns:
        Their number.
    """
    size = min(local.batch_size, len(y))
    if not local.balance or is_encoder_frozen:
        return size
    classes = len(torch.unique(y))
    return classes * max(_MIN_MEMBERS, size // classes)


def _gather_batches(
    x: Float[Tensor, "N *shape"],
    batches: Int[Tensor, "steps b"],
    augmentation: str,
    generator: torch.Generator,
) -> Iterator[Float[Tensor, "steps b *shape"]]:
    """Yield the images of many steps at a time, augmented: operations are dear."""
    size = batches.shape[1] * x[0].numel()
    for rows in torch.split(batches, max(1, _VALUES_AT_ONCE // size)):
        images = x[rows.flatten()]
        if augmentation != "none":
            images = augment_images(images, augmentation, generator)
        yield images.view(*rows.shape, *x.shape[1:])


def _shuffle_epochs(
    members: Int[Tensor, " n"], steps: int, size: int, generator: torch.Generator
) -> Int[Tensor, "steps size"]:
    """Return `size` of the members for each step, everyone once before anyone again."""
    epochs = -(-steps * size // len(members))
    order = [torch.randperm(len(members), generator=generator) for _ in range(epochs)]
    return members[torch.cat(order)[: steps * size]].view(steps, size)


def _draw_cut_noise(
    flat: FlatNet, batches: Int[Tensor, "steps b"], generator: torch.Generator
) -> tuple[Bool[Tensor, "steps b D"] | None, Float[Tensor, "steps b D"] | None]:
    """Return the round's masks and noise at the cut, each None where the cut has none."""
    shape = (*batches.shape, flat.net.features)
    device = flat.vector.device
    mask = flat.net.cut.draw_mask(shape, generator)
    xi = flat.net.cut.draw_noise(shape, generator)
    return None if mask is None else mask.to(device), None if xi is None else xi.to(device)


def _encode(flat: FlatNet, x: Float[Tensor, "N C H W"]) -> Float[Tensor, "N D"]:
    """Return z of images under the current encoder, as constants."""
    with torch.no_grad():
        return flat.net.encode(x)


def encode_in_pieces(flat: FlatNet, images: Images) -> FeatureBatches:
    """Return the client's features and labels, on the processor, encoded by `flat` when read.

    Features are in units in which the noise of each has the cut's sigma.
    """
    return lambda: (
        (flat.net.whiten(_encode(flat, x)).detach().cpu(), y.cpu())
        for x, y in _split_images(images)
    )


def _split_images(images: Images) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield images and labels, as many at once as memory is spared for."""
    return zip(*(torch.split(tensor, _IMAGES_AT_ONCE) for tensor in images), strict=True)
