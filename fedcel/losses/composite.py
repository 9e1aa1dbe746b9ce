"""What is added to the cross-entropy: the conditional entropy loss and a defence, as one."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fedcel.errors import DivergedError
from fedcel.losses.cel.protocol import (
    ConditionalEntropy,
    FeatureBatches,
    ReadStackedFeatures,
    State,
    Term,
)
from fedcel.losses.defences.protocol import Defence, LawDefence
from fedcel.named_tensors import add_prefix, select_prefix
from fedcel.nets import whiten_features
from fedcel.short_repr import summarise_record

Streams = Callable[[str], torch.Generator]
"""Purpose -> fresh generator, bound to (seed, round, client)."""

CEL_PREFIX, DEFENCE_PREFIX = "cel.", "defence."
"""How the tensors of each part are named in a client's state."""


class TermSource(NamedTuple):
    """What makes a term of the loss, for messages.

    Attributes:
        name: How errors name it.
        remedy: What to do where the term is not finite.
    """

    name: str
    remedy: str = "lower the learning rate"


class Losses(NamedTuple):
    """The losses that act in one client's round, and how much each counts.

    Attributes:
        cel: The conditional entropy loss, or None.
        cel_weight: Factor of the conditional entropy loss, 0 or more.
        defence: The loss of another defence, or None.
        defence_weight: Factor of the defence's loss, 0 or more.
        clip: Largest norm of the weighted CEL's gradient at the features of one image, or None.
        has_two_passes: Whether the CEL has a backward pass of its own, into the encoder alone.
        cel_momentum: Share of the last step's in the running mean of the CEL's gradient that the
            encoder follows; 0: each step's own. Above 0 it needs a backward pass of its own.
        cel_source: How errors name the conditional entropy loss.
        defence_source: How errors name the defence.
    """

    cel: ConditionalEntropy | None = None
    cel_weight: float = 0.0
    defence: Defence | LawDefence | None = None
    defence_weight: float = 0.0
    clip: float | None = None
    has_two_passes: bool = False
    cel_momentum: float = 0.0
    cel_source: TermSource = TermSource("the conditional entropy loss")
    defence_source: TermSource = TermSource("the defence")

    @property
    def acts(self) -> bool:
        """Whether there is anything to add to the cross-entropy."""
        return self.cel is not None or self.defence is not None

    def split_passes(self) -> "tuple[Losses, Losses]":
        """Part what the cross-entropy's backward pass takes along, and what has one of its own."""
        if not self.has_two_passes:
            return self, NO_LOSSES
        return self._replace(cel=None), self._replace(defence=None)


NO_LOSSES = Losses()
"""Cross-entropy alone."""


class Batch(NamedTuple):
    """One batch on its way through the split network.

    Attributes:
        x: Images (B, C, H, W), in [0, 1].
        z: Features (B, D).
        smashed: Smashed data (B, D): z after the noise of the cut.
        y: Labels (B,).
        noise_scale: Standard deviation of each value's noise in units of the cut's sigma (B, D);
            None: all are 1.
    """

    x: Float[Tensor, "*k B C H W"]
    z: Float[Tensor, "*k B D"]
    smashed: Float[Tensor, "*k B D"]
    y: Int[Tensor, "*k B"]
    noise_scale: Float[Tensor, "*k B D"] | None = None

    def __repr__(self) -> str:
        """Show shapes in the place of numbers."""
        return summarise_record(self)

    def select_client(self, row: int) -> "Batch":
        """Return one client's batch of several's."""
        scale = self.noise_scale
        return Batch(
            self.x[row],
            self.z[row],
            self.smashed[row],
            self.y[row],
            None if scale is None else scale[row],
        )

    @property
    def whitened(self) -> Float[Tensor, "*k B D"]:
        """The features in units in which the noise of each has the cut's sigma."""
        return whiten_features(self.z, self.noise_scale)


def select_state(state: State | None, prefix: str) -> State | None:
    """Select the tensors of one part from a client's state.

    Args:
        state: The client's state, or None before its first round.
        prefix: How the part's tensors begin, `CEL_PREFIX` for one.

    Returns:
        The tensors under the part's own names, or None where there are none.
    """
    return select_prefix(state or {}, prefix) or None


def join_states(cel: State | None, defence: State | None) -> State:
    """Return both parts' tensors as one state."""
    return add_prefix(CEL_PREFIX, cel or {}) | add_prefix(DEFENCE_PREFIX, defence or {})


def start_losses(
    losses: Losses, state: State | None, batches: FeatureBatches, streams: Streams
) -> State:
    """Return the state that a round begins with; a part that does not act keeps its own."""
    cel, defence = select_state(state, CEL_PREFIX), select_state(state, DEFENCE_PREFIX)
    if losses.cel:
        cel = losses.cel.refresh(cel, batches, streams("refresh-0"))
    if losses.defence:
        defence = losses.defence.refresh(defence, streams("defence"))
    return join_states(cel, defence)


def refresh_losses(
    losses: Losses, state: State, batches: FeatureBatches, streams: Streams, *, step: int
) -> State:
    """Return the state with the CEL's statistics computed anew, at a step of the round."""
    if not losses.cel:
        return state
    cel = losses.cel.refresh(select_state(state, CEL_PREFIX), batches, streams(f"refresh-{step}"))
    return join_states(cel, select_state(state, DEFENCE_PREFIX))


def refresh_stack(losses: Losses, state: State, read_features: ReadStackedFeatures) -> State | None:
    """Return several clients' states with the CEL's statistics computed anew at once.

    None where the loss does not do so: see `Cluster.refresh_stack`.
    """
    if not losses.cel:
        return state
    if not can_refresh_stack(losses):
        return None
    cel_state = select_state(state, CEL_PREFIX) or {}
    refreshed = losses.cel.refresh_stack(cel_state, read_features)  # type: ignore[attr-defined]
    return None if refreshed is None else state | add_prefix(CEL_PREFIX, refreshed)


def can_refresh_stack(losses: Losses) -> bool:
    """Say whether the CEL computes the statistics of several clients at once."""
    return hasattr(losses.cel, "refresh_stack")


def takes_stacks(losses: Losses) -> bool:
    """Say whether all that acts computes, and measures, the batches of several clients at once."""
    parts = [part for part in (losses.cel, losses.defence) if part is not None]
    return all(getattr(part, "takes_stacks", False) for part in parts)


def add_losses(losses: Losses, state: State, batch: Batch, measure: bool) -> Term:
    """Return the weighted sum of the parts, and their metrics if they are to be measured."""
    total = batch.z.new_zeros(())
    metrics = {}
    if losses.cel:
        cel_state = select_state(state, CEL_PREFIX) or {}
        whitened = batch.whitened
        z = whitened if losses.clip is None else whitened.detach().requires_grad_()
        term = losses.cel.loss(cel_state, z, batch.y, measure)
        weighted = losses.cel_weight * term.loss
        if losses.clip is not None:
            weighted = clip_feature_gradient(weighted, z, whitened, losses.clip)
        total = total + weighted
        metrics = {**term.metrics}
    if losses.defence:
        defence_state = select_state(state, DEFENCE_PREFIX) or {}
        term = evaluate_defence(losses.defence, defence_state, batch, measure)
        total = total + losses.defence_weight * term.loss
        metrics |= term.metrics
    return Term(total, metrics)


def evaluate_defence(
    defence: Defence | LawDefence, state: State, batch: Batch, measure: bool
) -> Term:
    """Return a defence's term: of what is sent, or of the law of what is sent."""
    if isinstance(defence, LawDefence):
        scale = torch.ones_like(batch.z) if batch.noise_scale is None else batch.noise_scale
        return defence.law_loss(state, batch.z, scale, y=batch.y, measure=measure)
    return defence.loss(state, batch.x, batch.z, batch.smashed, measure)


def clip_feature_gradient(
    loss: Float[Tensor, "*k"],
    leaf: Float[Tensor, "*k B D"],
    z: Float[Tensor, "*k B D"],
    max_norm: float,
) -> Float[Tensor, "*k"]:
    """Return a term whose gradient at z is the loss's at `leaf`, each row's norm clipped.

    The loss's own parameters (an attention) get their gradient here, unclipped. The value is the
    loss's.
    """
    torch.autograd.backward(loss, torch.ones_like(loss))
    gradient = leaf.grad
    if gradient is None:  # no class carries a signal
        return loss.detach()
    norm = gradient.norm(dim=-1, keepdim=True).clamp_min(torch.finfo(gradient.dtype).tiny)
    gradient = gradient * (max_norm / norm).clamp_max(1.0)
    pull: Tensor = (z * gradient).sum((-2, -1))
    return loss.detach() + pull - pull.detach()


def step_losses(losses: Losses, state: State, batch: Batch) -> State:
    """Return the state after the backward pass."""
    cel, defence = select_state(state, CEL_PREFIX), select_state(state, DEFENCE_PREFIX)
    if losses.cel:
        cel = losses.cel.step(cel or {}, batch.whitened.detach(), batch.y)
    if losses.defence:
        defence = losses.defence.step(defence or {})
    return join_states(cel, defence)


def refuse_undefined_terms(losses: Losses, state: State, batch: Batch) -> None:
    """Name the term that is not finite, or has no finite gradient, though its features are finite.

    Args:
        losses: The losses that act.
        state: Their state.
        batch: A batch that training failed at.

    Raises:
        DivergedError: Names the loss that is to blame.
    """
    if not (batch.z.isfinite().all() and batch.smashed.isfinite().all()):
        return
    cel, defence = losses.cel, losses.defence
    noise = (batch.smashed - batch.z).detach()
    if cel:
        cel_state = select_state(state, CEL_PREFIX) or {}
        _refuse_undefined_term(
            losses.cel_source, lambda z: cel.loss(cel_state, z, batch.y, False), batch.whitened
        )
    if defence:
        defence_state = select_state(state, DEFENCE_PREFIX) or {}
        _refuse_undefined_term(
            losses.defence_source,
            lambda z: evaluate_defence(
                defence, defence_state, batch._replace(z=z, smashed=z + noise), False
            ),
            batch.z,
        )


def _refuse_undefined_term(
    source: TermSource, evaluate: Callable[[Tensor], Term], z: Float[Tensor, "B D"]
) -> None:
    """Raise DivergedError unless a term and its gradient at the features are finite."""
    z = z.detach().requires_grad_()
    loss = evaluate(z).loss
    words = f"gave a loss that is not finite ({loss.item():g})"
    if loss.isfinite():
        words = "gave a finite loss whose gradient is not finite"
        (gradient,) = torch.autograd.grad(loss, z, allow_unused=True)
        if gradient is None or gradient.isfinite().all():
            return
    raise DivergedError(f"{source.name} {words}, though its features are; {source.remedy}")
