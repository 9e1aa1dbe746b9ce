"""The local update: the only training loop there is."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedcel import losses
from fedcel.arrays import FlatNet
from fedcel.cel.base import Codes, State
from fedcel.data.augment import augmented
from fedcel.losses import NOTHING, Batch, Losses, Streams
from fedcel.schedule import Plan
from fedcel.settings_groups import Local

BULK = 2**22  # values of images gathered and augmented at once
PIECE = 1024  # images encoded at once for the statistics of a loss


class Update(NamedTuple):
    """What a client's round gives."""

    delta: Float[Tensor, " P"]
    state: State
    metrics: dict[str, float]


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
) -> Update:
    """Take `local.steps` Langevin steps from `received` and return last minus received.

    Loss: mean cross-entropy + `extra`, priors at `received` and at 0 (Welling and Teh, ICML 2011,
    eq. 4). Statistics of the CEL are computed at the start and every `refresh` local epochs (0: at
    the start alone). Depends on its arguments alone; `flat` is overwritten as a workspace.
    """
    flat.load(received)
    batches = draw_batches(y, local, streams("batch"))
    state = losses.start(extra, state, codes(flat, x, y), streams)
    inputs = encoded(flat, x) if plan.freeze else x
    mask, xi = draw_cut_noise(flat, batches, streams("cut"))
    langevin = streams("langevin")
    change = "none" if plan.freeze else local.augment
    images = drawn(inputs, batches, change, streams("augment"))
    period, last = refresh * -(-len(y) // batches.shape[1]), len(batches) - 1
    cross_entropies: list[Tensor] = []
    metrics: dict[str, Tensor] = {}
    for step, (own, seen) in enumerate(zip(batches, images, strict=True)):
        if step and period and step % period == 0:
            state = losses.refreshed(extra, state, codes(flat, x, y), streams, step)
        flat.gradient.zero_()
        z = seen if plan.freeze else flat.net.encode(seen)
        kept = z if mask is None else z * mask[step]
        batch = Batch(seen, z, kept if xi is None else kept + xi[step], y[own])
        loss = cross_entropy(flat.net.answer(batch.message), batch.y)
        cross_entropies.append(loss.detach())
        if extra.acts:
            term = losses.added(extra, state, batch, measure=step == last)
            loss, metrics = loss + term.loss, term.metrics
        torch.autograd.backward(loss)
        langevin_step(flat, received, plan, langevin)
        state = losses.stepped(extra, state, batch) if extra.acts else state
    told = {key: value.item() for key, value in metrics.items()}
    told["loss"] = torch.stack(cross_entropies).mean().item()
    return Update(flat.vector - received, state, told)


def langevin_step(
    flat: FlatNet, received: Float[Tensor, " P"], plan: Plan, langevin: torch.Generator
) -> None:
    """Move all parameters in place: w <- w - eta (g + decay w + kappa (w - received)) + noise."""
    start = flat.cut if plan.freeze else 0
    vector, gradient = flat.vector[start:], flat.gradient[start:]
    if plan.decay or plan.pull:
        gradient.add_(vector, alpha=plan.decay + plan.pull)
        gradient.add_(received[start:], alpha=-plan.pull)
    vector.add_(gradient, alpha=-plan.rate)
    if plan.noise:
        vector.add_(torch.randn(vector.shape, generator=langevin), alpha=plan.noise)


def draw_batches(
    y: Int[Tensor, " N"], local: Local, generator: torch.Generator
) -> Int[Tensor, "steps b"]:
    """Return indices of each step's batch: shuffled epochs in a row, cut into equal pieces.

    Balanced: each class has its own shuffled epochs and the same number of places in every batch,
    at least one, so that a batch can be larger than asked for and rare classes come round sooner.
    """
    size = min(local.batch_size, len(y))
    if not local.balance:
        return passes(torch.arange(len(y)), local.steps, size, generator)
    classes = torch.unique(y)
    each = max(1, size // len(classes))
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
    return flat.net.cut.masks(shape, generator), flat.net.cut.noise(shape, generator)


def encoded(flat: FlatNet, x: Float[Tensor, "N C H W"]) -> Float[Tensor, "N D"]:
    """Return z of all the client's images under the current encoder, as constants."""
    with torch.no_grad():
        return flat.net.encode(x)


def codes(flat: FlatNet, x: Float[Tensor, "N C H W"], y: Int[Tensor, " N"]) -> Codes:
    """Return the client's smashed data, encoded in pieces as they are read."""
    return lambda: (
        (encoded(flat, images), labels)
        for images, labels in zip(torch.split(x, PIECE), torch.split(y, PIECE), strict=True)
    )
