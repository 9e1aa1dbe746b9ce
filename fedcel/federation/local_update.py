"""The local update: the only training loop there is."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from fedcel.data import Images, augment_images
from fedcel.losses import NO_LOSSES, Batch, Losses, Streams, composite
from fedcel.losses.cel import FeatureBatches, State
from fedcel.nets import CPU, FlatNet, fastest_device, place_state, use_full_precision
from fedcel.posterior import (
    LangevinContext,
    RoundPlan,
    build_sampler,
    langevin_step,
    moving_parameters,
)
from fedcel.settings import LocalSettings
from fedcel.short_repr import summarise_record

SHARED_NOISE = "langevin-common"
"""Purpose of the random stream that all clients of a round share."""
_MIN_MEMBERS = 2  # members without which a class has no spread
_VALUES_AT_ONCE = 2**22  # values of images gathered and augmented at once
_IMAGES_AT_ONCE = 1024  # images encoded at once for the statistics of a loss


class StepCorrections(NamedTuple):
    """Corrections added to each gradient of a client: control variate, preconditioner."""

    control_variate: Float[Tensor, " P"] | None = None
    """The clients' mean gradient less the client's own."""
    preconditioner: Float[Tensor, " P"] | None = None
    """A step size for each parameter in units of eta."""


NO_CORRECTIONS = StepCorrections()
"""Neither a control variate nor a preconditioner."""


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


class PreparedRound(NamedTuple):
    """What all steps of a client's round share, on the device where they are taken."""

    flat: FlatNet
    """The net, whose parameters the steps move."""
    images: Images
    """All of the client's images."""
    plan: RoundPlan
    losses: Losses
    streams: Streams
    batches: Int[Tensor, "steps b"]
    """Positions of each step's images."""
    batch_inputs: Iterator[Float[Tensor, "b *shape"]]
    """Each step's images, augmented; their features where the encoder is frozen."""
    mask: Bool[Tensor, "steps b D"] | None
    """What the cut keeps of the features."""
    cut_noise: Float[Tensor, "steps b D"] | None
    """What the cut adds to the features."""
    langevin: LangevinContext
    refresh_period: int
    """Steps between two refreshes of the CEL's statistics; 0: none after the first."""


class StepState(NamedTuple):
    """What a step hands on to the next, besides the parameters."""

    losses: State
    sampler: State


class StepMeasures(NamedTuple):
    """What is measured in a step."""

    potential: Float[Tensor, ""]
    was_clipped: Float[Tensor, ""] | None
    """1 or 0; None where nothing clips the gradient."""
    metrics: Mapping[str, Tensor]
    """The losses' own, in the last step alone."""


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
    corrections: StepCorrections = NO_CORRECTIONS,
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
        corrections: What is added to each gradient.

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
    images = Images(images.x.to(device), images.y.to(device))
    flat.load(received)

    def begin_round() -> PreparedRound:
        return _prepare_round(
            flat,
            received,
            images,
            plan=plan,
            local=local,
            streams=streams,
            losses=losses,
            refresh_every=refresh_every,
            corrections=corrections,
        )

    step_state, measures = _take_steps(begin_round(), state)
    if losses.acts and not flat.vector.isfinite().all():
        # The same steps once more, with a look at the losses before each.
        flat.load(received)
        _take_steps(begin_round(), state, inspect=True)
    return LocalUpdate(
        (flat.vector - received).cpu(),
        flat.vector.detach().to(CPU, copy=True),
        place_state(step_state.losses, CPU),
        _summarise(measures),
    )


def _prepare_round(
    flat: FlatNet,
    received: Float[Tensor, " P"],
    images: Images,
    *,
    plan: RoundPlan,
    local: LocalSettings,
    streams: Streams,
    losses: Losses,
    refresh_every: int,
    corrections: StepCorrections,
) -> PreparedRound:
    """Draw the round's batches and noise at the cut, and gather what its steps share."""
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
        losses=losses,
        streams=streams,
        batches=batches,
        batch_inputs=_gather_batches(inputs, batches, batch_settings.augment, streams("augment")),
        mask=mask,
        cut_noise=cut_noise,
        langevin=_make_langevin_context(
            flat, received, plan=plan, local=local, streams=streams, corrections=corrections
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
    corrections: StepCorrections,
) -> LangevinContext:
    """Gather what the Langevin steps of a round share, of the parameters that move."""
    moving = moving_parameters(flat, plan.is_encoder_frozen)
    control_variate, preconditioner = (
        None if correction is None else correction[moving].to(received.device)
        for correction in corrections
    )
    return LangevinContext(
        plan=plan,
        moving=moving,
        received=received[moving],
        control_variate=control_variate,
        preconditioner=preconditioner,
        noise_scale=None if preconditioner is None else plan.noise_scale(preconditioner),
        client_stream=streams("langevin"),
        shared_stream=streams(SHARED_NOISE),
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
    prepared: PreparedRound, state: State | None, *, inspect: bool = False
) -> tuple[StepState, list[StepMeasures]]:
    """Take all steps of a round; DivergedError if one is to be inspected and a loss undefined."""
    step_state = _start_round(prepared, state)
    measures = []
    for step, inputs in enumerate(prepared.batch_inputs):
        step_state, measured = _take_step(prepared, step_state, step, inputs, inspect=inspect)
        measures.append(measured)
    return step_state, measures


def _take_step(
    prepared: PreparedRound,
    state: StepState,
    step: int,
    inputs: Float[Tensor, "b *shape"],
    *,
    inspect: bool,
) -> tuple[StepState, StepMeasures]:
    """Compute the losses' gradient on a batch, and move the parameters by it."""
    flat, losses, loss_state = prepared.flat, prepared.losses, state.losses
    is_last = step == len(prepared.batches) - 1
    if step and prepared.refresh_period and step % prepared.refresh_period == 0:
        loss_state = _refresh_losses(prepared, loss_state, step)
    flat.gradient.zero_()
    batch = _pass_cut(prepared, step, inputs)
    loss = flat.net.potential(flat.net.answer(batch.smashed), batch.y)
    potential = loss.detach()
    metrics: Mapping[str, Tensor] = {}
    if inspect:
        composite.refuse_undefined_terms(losses, loss_state, batch)
    if losses.acts:
        term = composite.add_losses(losses, loss_state, batch, measure=is_last)
        loss = loss + term.loss
        metrics = term.metrics if is_last else {}
    torch.autograd.backward(loss)
    sampler_state, was_clipped = langevin_step(flat, prepared.langevin, state.sampler)
    if losses.acts:
        loss_state = composite.step_losses(losses, loss_state, batch)
    return StepState(loss_state, sampler_state), StepMeasures(potential, was_clipped, metrics)


def _refresh_losses(prepared: PreparedRound, state: State, step: int) -> State:
    """Compute the CEL's statistics anew, on the processor."""
    features = encode_in_pieces(prepared.flat, prepared.images)
    refreshed = composite.refresh_losses(
        prepared.losses, place_state(state, CPU), features, prepared.streams, step=step
    )
    return place_state(refreshed, prepared.flat.vector.device)


def _pass_cut(prepared: PreparedRound, step: int, inputs: Float[Tensor, "b *shape"]) -> Batch:
    """Encode a step's inputs, unless they are features already, and add the cut's noise."""
    z = inputs if prepared.plan.is_encoder_frozen else prepared.flat.net.encode(inputs)
    smashed = z if prepared.mask is None else z * prepared.mask[step]
    if prepared.cut_noise is not None:
        smashed = smashed + prepared.cut_noise[step]
    return Batch(inputs, z, smashed, prepared.images.y[prepared.batches[step]])


def _summarise(measures: Sequence[StepMeasures]) -> dict[str, float]:
    """Return the round's numbers: those of the losses, the mean potential, the share clipped."""
    numbers = {key: value.item() for key, value in measures[-1].metrics.items()}
    numbers["loss"] = torch.stack([step.potential for step in measures]).mean().item()
    clipped = [step.was_clipped for step in measures if step.was_clipped is not None]
    if clipped:
        numbers["clipped"] = torch.stack(clipped).mean().item()
    return numbers


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
    size = min(local.batch_size, len(y))
    if not local.balance:
        return _shuffle_epochs(torch.arange(len(y)), local.steps, size, generator)
    classes = torch.unique(y)
    per_class = max(_MIN_MEMBERS, size // len(classes))
    parts = [
        _shuffle_epochs(torch.eq(y, label).nonzero()[:, 0], local.steps, per_class, generator)
        for label in classes
    ]
    return torch.cat(parts, 1)


def _gather_batches(
    x: Float[Tensor, "N *shape"],
    batches: Int[Tensor, "steps b"],
    augmentation: str,
    generator: torch.Generator,
) -> Iterator[Float[Tensor, "b *shape"]]:
    """Yield each step's images, augmented; many steps at a time, for operations are dear."""
    size = batches.shape[1] * x[0].numel()
    for rows in torch.split(batches, max(1, _VALUES_AT_ONCE // size)):
        images = x[rows.flatten()]
        if augmentation != "none":
            images = augment_images(images, augmentation, generator)
        yield from images.view(*rows.shape, *x.shape[1:])


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
    """Return z of all the client's images under the current encoder, as constants."""
    with torch.no_grad():
        return flat.net.encode(x)


def encode_in_pieces(flat: FlatNet, images: Images) -> FeatureBatches:
    """Return the client's features and labels, on the processor, encoded by `flat` when read."""
    return lambda: ((_encode(flat, x).cpu(), y.cpu()) for x, y in _split_images(images))


def _split_images(images: Images) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield images and labels, as many at once as memory is spared for."""
    return zip(*(torch.split(tensor, _IMAGES_AT_ONCE) for tensor in images), strict=True)
