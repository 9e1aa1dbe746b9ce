"""The local update: the only training loop there is."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedcel.arrays import FlatNet
from fedcel.cel.base import ConditionalEntropy, State
from fedcel.schedule import Plan
from fedcel.settings_groups import Local

Streams = Callable[[str], torch.Generator]
"""Purpose -> fresh generator, bound to (seed, round, client)."""


class Update(NamedTuple):
    """What a client's round gives."""

    delta: Float[Tensor, " P"]
    state: State | None
    metrics: dict[str, float]


def local_update(
    flat: FlatNet,
    received: Float[Tensor, " P"],
    x: Float[Tensor, "N C H W"],
    y: Int[Tensor, " N"],
    plan: Plan,
    local: Local,
    streams: Streams,
    cel: ConditionalEntropy | None = None,
    state: State | None = None,
    refresh: str = "round",
) -> Update:
    """Take `local.steps` Langevin steps from `received` and return last minus received.

    Loss: mean cross-entropy + lambda*gamma*CEL, priors at `received` and at 0 (Welling and Teh,
    ICML 2011, eq. 4). Depends on its arguments alone; `flat` is overwritten as a workspace.
    """
    flat.load(received)
    cel = cel if plan.cel_weight > 0 and not plan.freeze else None
    batches = draw_batches(len(y), local, streams("batch"))
    x = encoded(flat, x) if plan.freeze else x
    xi = draw_cut_noise(flat, batches, streams("cut"))
    langevin = streams("langevin")
    epoch = -(-len(y) // batches.shape[1])
    losses: list[Tensor] = []
    metrics: dict[str, Tensor] = {}
    for step, batch in enumerate(batches):
        if cel and (step == 0 or (refresh == "epoch" and step % epoch == 0)):
            state = cel.refresh(state, encoded(flat, x), y, streams(f"refresh-{step}"))
        flat.gradient.zero_()
        z, labels = x[batch] if plan.freeze else flat.net.encode(x[batch]), y[batch]
        message = z if xi is None else z + xi[step]
        loss = cross_entropy(flat.net.answer(message), labels)
        losses.append(loss.detach())
        if cel and state is not None:
            term = cel.loss(state, z, labels, measure=step == len(batches) - 1)
            loss = loss + plan.cel_weight * term.loss
            metrics = term.metrics
        torch.autograd.backward(loss)
        langevin_step(flat, received, plan, langevin)
        state = cel.step(state) if cel and state is not None else state
    told = {key: value.item() for key, value in metrics.items()}
    told["loss"] = torch.stack(losses).mean().item()
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


def draw_batches(examples: int, local: Local, generator: torch.Generator) -> Int[Tensor, "steps b"]:
    """Return indices of each step's batch: shuffled epochs in a row, cut into equal pieces."""
    size = min(local.batch_size, examples)
    epochs = -(-local.steps * size // examples)
    order = torch.cat([torch.randperm(examples, generator=generator) for _ in range(epochs)])
    return order[: local.steps * size].view(local.steps, size)


def draw_cut_noise(
    flat: FlatNet, batches: Int[Tensor, "steps b"], generator: torch.Generator
) -> Float[Tensor, "steps b D"] | None:
    """Return sigma * xi for the whole round, or None when sigma is 0."""
    if flat.net.sigma == 0:
        return None
    return torch.randn(*batches.shape, flat.net.features, generator=generator) * flat.net.sigma


def encoded(flat: FlatNet, x: Float[Tensor, "N C H W"]) -> Float[Tensor, "N D"]:
    """Return z of all the client's images under the current encoder, as constants."""
    with torch.no_grad():
        return flat.net.encode(x)
