"""What is added to the cross-entropy: the conditional entropy loss and a defence, as one."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fedcel.losses.cel import state_names
from fedcel.losses.cel.protocol import Codes, ConditionalEntropy, State, Term
from fedcel.losses.defences.protocol import Defence

Streams = Callable[[str], torch.Generator]
"""Purpose -> fresh generator, bound to (seed, round, client)."""

CEL, DEFENCE = "cel.", "defence."
"""How the tensors of each part are named in a client's state."""


class Losses(NamedTuple):
    """The parts of one client's round that act, and how much each counts."""

    cel: ConditionalEntropy | None = None
    cel_weight: float = 0.0
    defence: Defence | None = None
    defence_weight: float = 0.0
    clip: float | None = None
    """Largest norm of the weighted CEL's gradient at one image's smashed data."""

    @property
    def acts(self) -> bool:
        """Say whether there is anything to add."""
        return self.cel is not None or self.defence is not None


NOTHING = Losses()
"""Cross-entropy alone."""


class Batch(NamedTuple):
    """One batch on its way: images, smashed data, what is sent, labels."""

    x: Float[Tensor, "B C H W"]
    z: Float[Tensor, "B D"]
    message: Float[Tensor, "B D"]
    y: Int[Tensor, " B"]


def select_state(state: State | None, prefix: str) -> State | None:
    """Return the tensors of one part under their own names, or None where there are none."""
    return state_names.select_prefix(state or {}, prefix) or None


def join_states(cel: State | None, defence: State | None) -> State:
    """Return both parts' tensors as one state."""
    return state_names.add_prefix(CEL, cel or {}) | state_names.add_prefix(DEFENCE, defence or {})


def start_losses(losses: Losses, state: State | None, codes: Codes, streams: Streams) -> State:
    """Return the state that a round begins with; a part that does not act keeps its own."""
    cel, defence = select_state(state, CEL), select_state(state, DEFENCE)
    if losses.cel:
        cel = losses.cel.refresh(cel, codes, streams("refresh-0"))
    if losses.defence:
        defence = losses.defence.refresh(defence, streams("defence"))
    return join_states(cel, defence)


def refresh_losses(
    losses: Losses, state: State, codes: Codes, streams: Streams, number: int
) -> State:
    """Return the state with the CEL's statistics computed anew, at step `number` of a round."""
    if not losses.cel:
        return state
    cel = losses.cel.refresh(select_state(state, CEL), codes, streams(f"refresh-{number}"))
    return join_states(cel, select_state(state, DEFENCE))


def add_losses(losses: Losses, state: State, batch: Batch, measure: bool) -> Term:
    """Return the weighted sum of the parts, and their metrics if they are to be measured."""
    total, metrics = batch.z.new_zeros(()), {}
    if losses.cel:
        own = select_state(state, CEL) or {}
        z = batch.z if losses.clip is None else batch.z.detach().requires_grad_()
        term = losses.cel.loss(own, z, batch.y, measure)
        weighted = losses.cel_weight * term.loss
        if losses.clip is not None:
            weighted = clip_term(weighted, z, batch.z, losses.clip)
        total, metrics = total + weighted, {**term.metrics}
    if losses.defence:
        own = select_state(state, DEFENCE) or {}
        term = losses.defence.loss(own, batch.x, batch.z, batch.message, measure)
        total = total + losses.defence_weight * term.loss
        metrics |= term.metrics
    return Term(total, metrics)


def clip_term(
    loss: Float[Tensor, ""], leaf: Float[Tensor, "B D"], z: Float[Tensor, "B D"], most: float
) -> Float[Tensor, ""]:
    """Return a term whose gradient at z is the loss's, each row's norm at most `most`.

    The loss's own parameters (an attention) get their gradient here, unclipped. The value is the
    loss's.
    """
    torch.autograd.backward(loss)
    slope = leaf.grad
    if slope is None:  # no class carries a signal
        return loss.detach()
    norm = slope.norm(dim=1, keepdim=True).clamp_min(torch.finfo(slope.dtype).tiny)
    slope = slope * (most / norm).clamp_max(1.0)
    pulled: Tensor = (z * slope).sum()
    return loss.detach() + pulled - pulled.detach()


def step_losses(losses: Losses, state: State, batch: Batch) -> State:
    """Return the state after the backward pass."""
    cel, defence = select_state(state, CEL), select_state(state, DEFENCE)
    if losses.cel:
        cel = losses.cel.step(cel or {}, batch.z.detach(), batch.y)
    if losses.defence:
        defence = losses.defence.step(defence or {})
    return join_states(cel, defence)
