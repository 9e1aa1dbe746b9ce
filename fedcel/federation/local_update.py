"""The local update: the only training loop there is."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from fedcel.data import augment_images
from fedcel.losses import NO_LOSSES, Batch, Losses, Streams, composite
from fedcel.losses.cel import FeatureBatches, State
from fedcel.nets import CPU, FlatNet, fastest_device, place_state, use_full_precision
from fedcel.posterior import (
    RoundConstants,
    RoundPlan,
    build_sampler,
    langevin_step,
    moving_parameters,
)
from fedcel.settings import LocalSettings

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
    """Of the losses."""
    metrics: dict[str, float]


@use_full_precision()
def local_update(
    flat: FlatNet,
    received: Float[Tensor, " P"],
    x: Float[Tensor, "N C H W"],
    y: Int[Tensor, " N"],
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
        x: The client's images (N, C, H, W) in [0, 1].
        y: Their labels, (N,).
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

    References:
        Welling and Teh, ICML 2011, eq. 4.
    """
    place = fastest_device(flat.net)
    flat = flat if place == CPU else flat.copy_to(place)
    received, x, y = received.to(place), x.to(place), y.to(place)
    flat.load(received)
    # A posterior weights no class.
    batch_settings = local.model_copy(update={"balance": local.balance and not plan.freeze})
    batches = draw_batches(y.cpu(), batch_settings, streams("batch")).to(place)
    state = place_state(
        composite.start_losses(losses, state, encode_in_pieces(flat, x, y), streams), place
    )
    inputs = _encode(flat, x) if plan.freeze else x
    mask, xi = _draw_cut_noise(flat, batches, streams("cut"))
    constants = make_round_constants(
        flat, received, plan=plan, local=local, streams=streams, corrections=corrections
    )
    augmentation = "none" if plan.freeze else local.augment
    moving = flat.vector[moving_parameters(flat, plan.freeze)]
    sampler_state = constants.sampler.start(moving, plan)
    batch_images = _gather_batches(inputs, batches, augmentation, streams("augment"))
    period, last = refresh_every * -(-len(y) // batches.shape[1]), len(batches) - 1
    potentials: list[Tensor] = []
    clipped: list[Tensor] = []
    metrics: dict[str, Tensor] = {}
    for step, (rows, batch_inputs) in enumerate(zip(batches, batch_images, strict=True)):
        if step and period and step % period == 0:
            state, features = place_state(state, CPU), encode_in_pieces(flat, x, y)
            state = composite.refresh_losses(losses, state, features, streams, step=step)
            state = place_state(state, place)
        flat.gradient.zero_()
        z = batch_inputs if plan.freeze else flat.net.encode(batch_inputs)
        masked = z if mask is None else z * mask[step]
        batch = Batch(batch_inputs, z, masked if xi is None else masked + xi[step], y[rows])
        loss = flat.net.potential(flat.net.answer(batch.smashed), batch.y)
        potentials.append(loss.detach())
        if losses.acts:
            term = composite.add_losses(losses, state, batch, measure=step == last)
            loss, metrics = loss + term.loss, term.metrics
        torch.autograd.backward(loss)
        sampler_state, was_clipped = langevin_step(flat, constants, plan, sampler_state)
        if was_clipped is not None:
            clipped.append(was_clipped)
        state = composite.step_losses(losses, state, batch) if losses.acts else state
    return LocalUpdate(
        (flat.vector - received).cpu(),
        flat.vector.detach().to(CPU, copy=True),
        place_state(state, CPU),
        _summarise(metrics, potentials, clipped),
    )


def make_round_constants(
    flat: FlatNet,
    received: Float[Tensor, " P"],
    *,
    plan: RoundPlan,
    local: LocalSettings,
    streams: Streams,
    corrections: StepCorrections,
) -> RoundConstants:
    """Gather what all steps of a round share, of the parameters that move."""
    part = moving_parameters(flat, plan.freeze)
    control_variate, step_sizes = (
        None if correction is None else correction[part].to(received.device)
        for correction in corrections
    )
    return RoundConstants(
        received[part],
        control_variate,
        step_sizes,
        None if step_sizes is None else plan.noise_scale(step_sizes),
        streams("langevin"),
        streams(SHARED_NOISE),
        torch.empty_like(flat.vector[part], device=CPU),
        build_sampler(local),
    )


def _summarise(
    metrics: Mapping[str, Tensor], potentials: list[Tensor], clipped: list[Tensor]
) -> dict[str, float]:
    """Return the round's numbers: those of the losses, the mean potential, the share clipped."""
    numbers = {key: value.item() for key, value in metrics.items()}
    numbers["loss"] = torch.stack(potentials).mean().item()
    if clipped:
        numbers["clipped"] = torch.stack(clipped).mean().item()
    return numbers


def compute_full_gradient(
    flat: FlatNet,
    received: Float[Tensor, " P"],
    x: Float[Tensor, "N C H W"],
    y: Int[Tensor, " N"],
    *,
    streams: Streams,
    freeze: bool = False,
) -> Float[Tensor, " P"]:
    """Compute the gradient at the received model of the mean potential of all a client's images.

    One draw of the cut's noise for each image, of a stream of its own; neither added losses nor
    priors.

    Args:
        flat: The net to work with; its parameters do not matter.
        received: The model, (P,).
        x: The client's images (N, C, H, W) in [0, 1].
        y: Their labels, (N,).
        streams: Random streams of this client and round, by purpose.
        freeze: Whether the encoder stands still; nobody needs to see its gradient, which is 0.

    Returns:
        The gradient, (P,).
    """
    flat.load(received)
    flat.gradient.zero_()
    noise = streams("control")
    pieces = zip(torch.split(x, _IMAGES_AT_ONCE), torch.split(y, _IMAGES_AT_ONCE), strict=True)
    for images, labels in pieces:
        message = flat.net.add_noise(flat.net.encode(images), noise)
        loss = flat.net.potential(flat.net.answer(message), labels)
        torch.autograd.backward(loss * (len(labels) / len(y)))
    gradient = torch.zeros_like(flat.gradient)
    part = moving_parameters(flat, freeze)
    gradient[part] = flat.gradient[part]
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
        generator: Of the batches.

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
    cut, place = flat.net.cut, flat.vector.device
    mask, xi = cut.draw_mask(shape, generator), cut.draw_noise(shape, generator)
    return None if mask is None else mask.to(place), None if xi is None else xi.to(place)


def _encode(flat: FlatNet, x: Float[Tensor, "N C H W"]) -> Float[Tensor, "N D"]:
    """Return z of all the client's images under the current encoder, as constants."""
    with torch.no_grad():
        return flat.net.encode(x)


def encode_in_pieces(
    flat: FlatNet, x: Float[Tensor, "N C H W"], y: Int[Tensor, " N"]
) -> FeatureBatches:
    """Return the client's features and labels, on the processor, encoded by `flat` when read."""
    return lambda: (
        (_encode(flat, images).cpu(), labels.cpu())
        for images, labels in zip(
            torch.split(x, _IMAGES_AT_ONCE), torch.split(y, _IMAGES_AT_ONCE), strict=True
        )
    )
