"""Terms added to the potential: conditional entropy losses and rivals, as the trainer sees them."""

from collections.abc import Callable, Sequence
from typing import ClassVar, Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fedcel.errors import DivergedError
from fedcel.losses.protocol import FeatureReader, State, Term, select_row, stack_states
from fedcel.named_tensors import add_prefix, select_prefix
from fedcel.nets import CPU, whiten_features
from fedcel.short_repr import show_shapes

Streams = Callable[[str], torch.Generator]
"""Purpose -> fresh generator, bound to (seed, round, client)."""


@show_shapes
class Batch(NamedTuple):
    """A batch of each of K clients on its way through the split network.

    Attributes:
        x: Images (K, B, C, H, W), in [0, 1].
        z: Features (K, B, D).
        smashed: Smashed data (K, B, D): z after the noise of the cut.
        y: Labels (K, B).
        noise_scale: Standard deviation of each value's noise in units of the cut's sigma
            (K, B, D); None: all are 1.
        task_gradient: Gradient of the potential at the whitened features (K, B, D), where a term
            is held to it.
    """

    x: Float[Tensor, "K B ..."]
    z: Float[Tensor, "K B D"]
    smashed: Float[Tensor, "K B D"]
    y: Int[Tensor, "K B"]
    noise_scale: Float[Tensor, "K B D"] | None = None
    task_gradient: Float[Tensor, "K B D"] | None = None

    @property
    def known_scale(self) -> Float[Tensor, "K B D"]:
        """Standard deviation of each value's noise in units of sigma, also where all are 1."""
        return torch.ones_like(self.z) if self.noise_scale is None else self.noise_scale

    @property
    def whitened(self) -> Float[Tensor, "*k B D"]:
        """The features in units in which the noise of each has the cut's sigma."""
        return whiten_features(self.z, self.noise_scale)


class LossTerm:
    """A loss of K clients at once: state, batch and value have a first dimension, a client a row.

    What a loss does not need it leaves as it is here.
    """

    takes_stacks: ClassVar[bool] = True
    """Whether several clients are computed at once; else K is 1."""

    def refresh(
        self,
        state: State | None,
        read_features: FeatureReader,
        streams: Sequence[Streams],
        step: int,
    ) -> State:
        """Make the state that a round begins with, or compute its statistics again.

        Args:
            state: What the clients have; None before their first round.
            read_features: Reads all features of all clients.
            streams: The only source of random numbers of each client.
            step: Steps taken in the round; 0: it begins.

        Returns:
            The state of all clients.
        """
        return state or {}

    def loss(self, state: State, batch: Batch, measure: bool) -> Term:
        """Compute the loss (K,) of a batch, and metrics (K,), NaN where a client has none."""
        raise NotImplementedError

    def update(self, state: State, batch: Batch) -> State:
        """Move what the loss learns itself, after the backward pass."""
        return state


class GradientRule(NamedTuple):
    """Path of a term's gradient to the parameters.

    Attributes:
        clip: Largest norm of the weighted gradient at the features of one image; `task`: at those
            of a batch, the norm of the potential's gradient; None: there is none.
        momentum: Share of the last step's in the running mean of the term's gradient that the
            encoder follows, from a backward pass of its own; 0: each step's own; None: the term
            shares the pass of the cross-entropy.
    """

    clip: float | Literal["task"] | None = None
    momentum: float | None = None

    @property
    def has_own_pass(self) -> bool:
        """Whether the term has a backward pass of its own, into the encoder only."""
        return self.momentum is not None

    def bound(
        self, gradient: Float[Tensor, "K B D"], task: Float[Tensor, "K B D"] | None
    ) -> Float[Tensor, "K B D"]:
        """Bound a term's gradient at the features; `task` is the potential's."""
        tiny = torch.finfo(gradient.dtype).tiny
        if self.clip != "task":
            assert self.clip is not None
            norm = gradient.norm(dim=-1, keepdim=True).clamp_min(tiny)
            bounded: Tensor = gradient * (self.clip / norm).clamp_max(1.0)
            return bounded
        if task is None:  # of a batch that no step is taken with
            return gradient
        norm, allowed = (part.flatten(1).norm(dim=1) for part in (gradient, task))
        share: Tensor = (allowed / norm.clamp_min(tiny)).clamp_max(1.0)
        return gradient * share[:, None, None]


JOINT = GradientRule()
"""Along with the cross-entropy, in one backward pass."""


class WeightedTerm(NamedTuple):
    """A term, how much it counts in a round, and how its gradient reaches the parameters."""

    name: str
    """Prefix of its tensors in a client's state."""
    term: LossTerm
    weight: float
    rule: GradientRule = JOINT
    title: str = "a loss"
    """Name in errors."""
    remedy: str = "lower the learning rate"
    """Advice where it is not finite."""

    def evaluate(self, state: State, batch: Batch, measure: bool) -> Term:
        """Compute the weighted loss (K,) of a batch, and metrics if they are to be measured."""
        if self.rule.clip is None:
            loss, metrics = self.term.loss(state, batch, measure)
            return Term(self.weight * loss, metrics)
        z = batch.whitened.detach().requires_grad_()
        shift = (z - z.detach()) * (
            1.0 if batch.noise_scale is None else batch.noise_scale.detach()
        )
        probe = batch._replace(z=z, smashed=batch.smashed.detach() + shift, noise_scale=None)
        loss, metrics = self.term.loss(state, probe, measure)
        torch.autograd.backward(self.weight * loss, torch.ones_like(loss))
        if z.grad is None:  # no class carries a signal
            return Term(self.weight * loss.detach(), metrics)
        gradient = self.rule.bound(z.grad, batch.task_gradient)
        # The value of the loss, the bounded gradient: straight-through.
        pull = (batch.whitened * gradient).sum((-2, -1))
        return Term(self.weight * loss.detach() + (pull - pull.detach()), metrics)


States = dict[str, State]
"""The state of each term that acts, of all clients, by the term's name."""


def start_terms(
    terms: Sequence[WeightedTerm],
    stored: Sequence[State | None],
    read_features: FeatureReader,
    streams: Sequence[Streams],
    *,
    device: torch.device = CPU,
) -> States:
    """Make the states that a round begins with. Statistics are computed on the CPU.

    Args:
        terms: Those that act in the round.
        stored: What each client present of its last round, None before its first.
        read_features: Reads all features of all clients.
        streams: Random streams of each client.
        device: Device of the steps.

    Returns:
        The state of each term.
    """
    states: States = {}
    for weighted in terms:
        rows = [select_state(state, weighted.name) for state in stored]
        present = [row for row in rows if row is not None]  # of all or none
        joined = stack_states(present) if present else None
        state = weighted.term.refresh(joined, read_features, streams, 0)
        states[weighted.name] = _place_state(state, device)
    return states


def refresh_terms(
    terms: Sequence[WeightedTerm],
    states: States,
    read_features: FeatureReader,
    streams: Sequence[Streams],
    *,
    step: int,
    is_due: Sequence[bool],
    device: torch.device = CPU,
) -> States:
    """Compute the statistics of the terms again, on the CPU, for the clients that are due.

    Args:
        terms: Those that act in the round.
        states: The state of each term.
        read_features: Reads all features of all clients.
        streams: Random streams of each client.
        step: Steps taken so far.
        is_due: Of each client.
        device: Device of the steps.

    Returns:
        The state of each term; a tensor that learns is a leaf.
    """

    def choose(new: Tensor, old: Tensor) -> Tensor:
        if new is old or all(is_due):
            return new
        rows = torch.tensor(is_due, device=new.device).view(-1, *[1] * (new.dim() - 1))
        return torch.where(rows, new.detach(), old.detach()).requires_grad_(old.requires_grad)

    after: States = {}
    for weighted in terms:
        old = _place_state(states[weighted.name], CPU)
        new = weighted.term.refresh(old, read_features, streams, step)
        chosen = {name: choose(tensor, old[name]) for name, tensor in new.items()}
        after[weighted.name] = _place_state(chosen, device)
    return after


def part_states(
    terms: Sequence[WeightedTerm], states: States, stored: Sequence[State | None]
) -> list[State]:
    """Part the states into what each client keeps: those of terms that acted, its own of others.

    Args:
        terms: Those that acted in the round.
        states: The state of each term.
        stored: What each client kept of its last round, None before its first.

    Returns:
        Each client's state, on the CPU.
    """
    after = [dict(state or {}) for state in stored]
    for weighted in terms:
        ended = _place_state(states[weighted.name], CPU)
        for row, state in enumerate(after):
            part = select_row(ended, row)
            for name in select_prefix(state, f"{weighted.name}."):
                del state[f"{weighted.name}.{name}"]
            state |= add_prefix(f"{weighted.name}.", part)
    return after


def _place_state(state: State, device: torch.device) -> State:
    """Copy a state to a device; a tensor that gathers a gradient begins a new one there."""
    return {
        name: tensor
        if tensor.device == device
        else tensor.detach().to(device).requires_grad_(tensor.requires_grad)
        for name, tensor in state.items()
    }


def select_state(state: State | None, name: str) -> State | None:
    """Select the tensors of one term from a client's state.

    Args:
        state: The client's state, or None before its first round.
        name: The term.

    Returns:
        The tensors under the term's own names, or None where there are none.
    """
    return select_prefix(state or {}, f"{name}.") or None


def refuse_undefined_terms(terms: Sequence[WeightedTerm], states: States, batch: Batch) -> None:
    """Name the term that is not finite, or has no finite gradient, though its features are finite.

    Args:
        terms: Those that act.
        states: Their states.
        batch: A batch that training failed at.

    Raises:
        DivergedError: Names the loss that is to blame.
    """
    if not (batch.z.isfinite().all() and batch.smashed.isfinite().all()):
        return
    noise = (batch.smashed - batch.z).detach()
    for weighted in terms:
        z = batch.z.detach().requires_grad_()
        probe = batch._replace(z=z, smashed=z + noise)
        loss = weighted.term.loss(states[weighted.name], probe, False).loss.sum()
        words = f"gave a loss that is not finite ({loss.item():g})"
        if loss.isfinite():
            words = "gave a finite loss whose gradient is not finite"
            (gradient,) = torch.autograd.grad(loss, z, allow_unused=True)
            if gradient is None or gradient.isfinite().all():
                continue
        remedy = f"though its features are; {weighted.remedy}"
        raise DivergedError(f"{weighted.title} {words}, {remedy}")
