"""The local update: the only training loop there is."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from fedcel.data.augmentation import augmented
from fedcel.losses import composite
from fedcel.losses.cel.protocol import Codes, State
from fedcel.losses.composite import NOTHING, Batch, Losses, Streams
from fedcel.nets.device import CPU, fastest, full_precision, placed
from fedcel.nets.flat_parameters import FlatNet
from fedcel.posterior.langevin_step import Ground, langevin_step, moving, noise_scale
from fedcel.posterior.round_plan import Plan
from fedcel.posterior.samplers import motion
from fedcel.settings.groups import Local

PAIR = 2  # members without which a class has no spread
BULK = 2**22  # values of images gathered and augmented at once
PIECE = 1024  # images encoded at once for the statistics of a loss


class Steer(NamedTuple):
    """What bends a client's steps; see `fedcel.posterior.langevin_step.Ground`."""

    shift: Float[Tensor, " P"] | None = None
    scale: Float[Tensor, " P"] | None = None


STRAIGHT = Steer()
"""Neither a control variate nor a preconditioner."""
COMMON = "langevin-common"
"""Purpose of the stream that all clients of a round share."""


class Update(NamedTuple):
    """What a client's round gives."""

    delta: Float[Tensor, " P"]
    state: State
    metrics: dict[str, float]


@full_precision()
def local_update(
    flat: FlatNet,
    received: Float[Tensor, " P"],
    x: Float[Tensor, "N C H W"],
    y: Int[Tensor, " N"],
    plan: Plan,
    local: Local,
    streams: Streams,
    extra: Losses = NOTHING,
    state: State | None = None,
    refresh: int = 0,
    steer: Steer = STRAIGHT,
) -> Update:
    """Take `local.steps` Langevin steps from `received` and return last minus received.

    Loss: the net's potential, mean cross-entropy as a rule, + `extra`, priors at `received` and at
    0 (Welling and Teh, ICML 2011, eq. 4); `steer` bends the steps. Statistics of the CEL are
    computed at the start and every `refresh` local epochs (0: at the start alone). Depends on its
    arguments alone; `flat` is overwritten as a workspace. Steps are taken on the net's fastest
    device; draws and statistics are made on the processor, where all that is returned is.
    """
    place, own = fastest(flat.net), flat
    flat = own if place == CPU else own.on(place)
    received, x, y = received.to(place), x.to(place), y.to(place)
    flat.load(received)
    fair = local.model_copy(update={"balance": local.balance and not plan.freeze})
    batches = draw_batches(y.cpu(), fair, streams("batch")).to(place)  # a posterior weights none
    state = placed(composite.start(extra, state, codes(flat, x, y), streams), place)
    inputs = encoded(flat, x) if plan.freeze else x
    mask, xi = draw_cut_noise(flat, batches, streams("cut"))
    ground = grounded(flat, received, plan, local, streams, steer)
    change = "none" if plan.freeze else local.augment
    images = drawn(inputs, batches, change, streams("augment"))
    period, last = refresh * -(-len(y) // batches.shape[1]), len(batches) - 1
    potentials: list[Tensor] = []
    clipped: list[Tensor] = []
    metrics: dict[str, Tensor] = {}
    for step, (chosen, seen) in enumerate(zip(batches, images, strict=True)):
        if step and period and step % period == 0:
            fresh = placed(state, CPU), codes(flat, x, y)
            state = placed(composite.refreshed(extra, *fresh, streams, step), place)
        flat.gradient.zero_()
        z = seen if plan.freeze else flat.net.encode(seen)
        kept = z if mask is None else z * mask[step]
        batch = Batch(seen, z, kept if xi is None else kept + xi[step], y[chosen])
        loss = flat.net.potential(flat.net.answer(batch.message), batch.y)
        potentials.append(loss.detach())
        if extra.acts:
            term = composite.added(extra, state, batch, measure=step == last)
            loss, metrics = loss + term.loss, term.metrics
        torch.autograd.backward(loss)
        if (cut := langevin_step(flat, ground, plan)) is not None:
            clipped.append(cut)
        state = composite.stepped(extra, state, batch) if extra.acts else state
    if flat is not own:
        own.load(flat.vector.cpu())
    told = summed_up(metrics, potentials, clipped)
    return Update((flat.vector - received).cpu(), placed(state, CPU), told)


def grounded(
    flat: FlatNet,
    received: Float[Tensor, " P"],
    plan: Plan,
    local: Local,
    streams: Streams,
    steer: Steer,
) -> Ground:
    """Return what all steps of the round share, of the parameters that move."""
    part = moving(flat, plan.freeze)
    shift, scale = (None if one is None else one[part].to(received.device) for one in steer)
    return Ground(
        received[part],
        shift,
        scale,
        None if scale is None else noise_scale(scale, plan),
        streams("langevin"),
        streams(COMMON),
        torch.empty_like(flat.vector[part], device=CPU),
        motion(local, flat.vector[part], plan),
    )


def summed_up(
    metrics: Mapping[str, Tensor], potentials: list[Tensor], clipped: list[Tensor]
) -> dict[str, float]:
    """Return the round's numbers: those of the losses, the mean potential, the share clipped."""
    told = {key: value.item() for key, value in metrics.items()}
    told["loss"] = torch.stack(potentials).mean().item()
    return told | ({"clipped": torch.stack(clipped).mean().item()} if clipped else {})


def full_gradient(
    flat: FlatNet,
    received: Float[Tensor, " P"],
    x: Float[Tensor, "N C H W"],
    y: Int[Tensor, " N"],
    streams: Streams,
    freeze: bool = False,
) -> Float[Tensor, " P"]:
    """Return the gradient at `received` of the mean potential of all the client's images.

    One draw of the cut's noise each, its own stream; neither `extra` losses nor priors. 0 for
    an encoder that stands still: nobody needs to see that part.
    """
    flat.load(received)
    flat.gradient.zero_()
    noise = streams("control")
    for images, labels in zip(torch.split(x, PIECE), torch.split(y, PIECE), strict=True):
        message = flat.net.add_noise(flat.net.encode(images), noise)
        loss = flat.net.potential(flat.net.answer(message), labels)
        torch.autograd.backward(loss * (len(labels) / len(y)))
    found = torch.zeros_like(flat.gradient)
    part = moving(flat, freeze)
    found[part] = flat.gradient[part]
    return found


def draw_batches(
    y: Int[Tensor, " N"], local: Local, generator: torch.Generator
) -> Int[Tensor, "steps b"]:
    """Return indices of each step's batch: shuffled epochs in a row, cut into equal pieces.

    Balanced: each class has its own shuffled epochs and the same number of places in every batch,
    at least two, without which a class has no spread: a batch can be larger than asked for, and
    rare classes come round sooner.
    """
    size = min(local.batch_size, len(y))
    if not local.balance:
        return passes(torch.arange(len(y)), local.steps, size, generator)
    classes = torch.unique(y)
    each = max(PAIR, size // len(classes))
    parts = [
        passes(torch.eq(y, label).nonzero()[:, 0], local.steps, each, generator)
        for label in classes
    ]
    return torch.cat(parts, 1)


def drawn(
    x: Float[Tensor, "N *shape"],
    batches: Int[Tensor, "steps b"],
    change: str,
    generator: torch.Generator,
) -> Iterator[Float[Tensor, "b *shape"]]:
    """Yield each step's images, augmented; many steps at a time, for operations are dear."""
    size = batches.shape[1] * x[0].numel()
    for some in torch.split(batches, max(1, BULK // size)):
        flat = x[some.flatten()]
        changed = flat if change == "none" else augmented(flat, change, generator)
        yield from changed.view(*some.shape, *x.shape[1:])


def passes(
    members: Int[Tensor, " n"], steps: int, size: int, generator: torch.Generator
) -> Int[Tensor, "steps size"]:
    """Return `size` of the members for each step, everyone once before anyone again."""
    epochs = -(-steps * size // len(members))
    order = [torch.randperm(len(members), generator=generator) for _ in range(epochs)]
    return members[torch.cat(order)[: steps * size]].view(steps, size)


def draw_cut_noise(
    flat: FlatNet, batches: Int[Tensor, "steps b"], generator: torch.Generator
) -> tuple[Bool[Tensor, "steps b D"] | None, Float[Tensor, "steps b D"] | None]:
    """Return the round's masks and noise at the cut, each None where the cut has none."""
    shape = (*batches.shape, flat.net.features)
    cut, place = flat.net.cut, flat.vector.device
    mask, xi = cut.masks(shape, generator), cut.noise(shape, generator)
    return None if mask is None else mask.to(place), None if xi is None else xi.to(place)


def encoded(flat: FlatNet, x: Float[Tensor, "N C H W"]) -> Float[Tensor, "N D"]:
    """Return z of all the client's images under the current encoder, as constants."""
    with torch.no_grad():
        return flat.net.encode(x)


def codes(flat: FlatNet, x: Float[Tensor, "N C H W"], y: Int[Tensor, " N"]) -> Codes:
    """Return the client's smashed data, encoded in pieces as they are read, on the processor."""
    return lambda: (
        (encoded(flat, images).cpu(), labels.cpu())
        for images, labels in zip(torch.split(x, PIECE), torch.split(y, PIECE), strict=True)
    )
