"""Terms added to the potential: conditional entropy losses and rivals, as the trainer sees them."""

from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from fedcel.errors import DivergedError
from fedcel.losses.protocol import Batch, FeatureReader, MetricRanges, StackedFeatures, State, Term
from fedcel.nets import CPU, whiten_features
from fedcel.tensors import add_prefix, select_prefix, select_row, stack_states

Streams = Callable[[str], torch.Generator]
"""Purpose -> fresh generator, bound to (seed, round, client)."""


class LossTerm:
    """A loss of K clients at once: state, batch and value have a first dimension, a client a row.

    A loss overrides only the methods that it needs.
    """

    stream_name: ClassVar[str] = "refresh-{step}"
    """Purpose of the random streams of a refresh after so many steps."""
    metric_ranges: ClassVar[MetricRanges] = {}
    """Ranges of what `loss` measures; a user's own loss declares none."""

    @property
    def title(self) -> str:
        """Name in errors."""
        return "a loss"

    @property
    def remedy(self) -> str:
        """Advice where the loss is not finite."""
        return "lower the learning rate"

    @property
    def takes_stacks(self) -> bool:
        """Whether several clients are computed at once; else K is 1."""
        return True

    @property
    def metric_names(self) -> frozenset[str]:
        """Names of its metrics; of a user's own loss, those that it gave when it was tried."""
        return frozenset(self.metric_ranges)

    def is_refresh_due(self, step: int, steps_per_epoch: int) -> bool:
        """Whether the statistics are computed again after some steps of a round."""
        return False

    def see(self, batch: Batch) -> Batch:
        """Return a batch as the loss sees it; here as it passes the cut."""
        return batch

    def set_threshold(self, threshold: float) -> "LossTerm":
        """Return the loss with another threshold of its penalty, where it has one."""
        return self

    def average_positions(self, z: Float[Tensor, "*k D"]) -> Float[Tensor, "*k C"]:
        """Average each channel of features over its positions, where the loss sees means only."""
        return z

    def refresh(
        self,
        state: State | None,
        read_features: FeatureReader,
        generators: Sequence[torch.Generator],
    ) -> State:
        """Make the state that a round begins with, or compute its statistics again.

        Args:
            state: What the clients have; None before their first round.
            read_features: Reads features of all clients, in units of their noise.
            generators: The only source of random numbers of each client.

        Returns:
            The state of all clients.
        """
        return {}

    def loss(self, state: State, batch: Batch, measure: bool) -> Term:
        """Compute the loss (K,) of a batch, and metrics (K,), NaN where a client has none."""
        raise NotImplementedError

    def update(self, state: State) -> State:
        """Move what the loss learns itself, by the gradient of the last backward pass."""
        return state


class GradientRule(NamedTuple):
    """Path of a term's gradient to the parameters.

    Attributes:
        clip: Largest norm of the weighted gradient at one image's features. `task`: its norm over
            the batch is at most that of the potential's gradient. None: no limit.
        momentum: beta of the mean m <- beta m + (1 - beta) g of the gradients g, which the encoder
            follows. They have a backward pass of their own, into the encoder only. None: they come
            with the cross-entropy's, in one backward pass.
    """

    clip: float | Literal["task"] | None = None
    momentum: float | None = None

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
        if task is None:  # the encoder has no gradient that could be compared with
            return gradient
        norm, allowed = (part.flatten(1).norm(dim=1) for part in (gradient, task))
        share: Tensor = (allowed / norm.clamp_min(tiny)).clamp_max(1.0)
        return gradient * share[:, None, None]


JOINT = GradientRule()
"""Unbounded, along with the cross-entropy."""


Gamma = Callable[[int, int, float, float | None], float]
"""Share of a term's weight that acts in a round.

By the round, from 1, the rounds of the run, the step size as a share of the first, and the largest
share that the server allows, None where it sets none.
"""


class WeightedTerm(NamedTuple):
    """A term, how much it counts, and how its gradient reaches the parameters.

    Attributes:
        name: Prefix of its tensors in a client's state.
        term: The loss.
        weight: lambda; in the plan of a round, lambda gamma.
        rule: Path of its gradient.
        gamma: Schedule of the weight.
    """

    name: str
    term: LossTerm
    weight: float = 0.0
    rule: GradientRule = JOINT
    gamma: Gamma = lambda number, rounds, rate_share, limit: 1.0

    def weigh(
        self,
        number: int,
        rounds: int,
        rate_share: float,
        *,
        gamma: float | None = None,
        threshold: float | None = None,
    ) -> "WeightedTerm":
        """Return the term with its weight in a round; see `Gamma`.

        `gamma` and `threshold` are those that the server sends, None where it sends none.
        """
        weight = self.weight * self.gamma(number, rounds, rate_share, gamma)
        term = self.term if threshold is None else self.term.set_threshold(threshold)
        return self._replace(term=term, weight=weight)

    def refresh(
        self,
        state: State | None,
        read_features: FeatureReader,
        streams: Sequence[Streams],
        step: int = 0,
    ) -> State:
        """Make the state that a round begins with, or after `step` steps its statistics again."""
        purpose = self.term.stream_name.format(step=step)
        generators = [stream(purpose) for stream in streams]

        def read() -> Iterator[StackedFeatures]:  # the same at each call
            for part in read_features():
                yield part._replace(z=self.term.average_positions(part.z))

        return self.term.refresh(state, read, generators)

    def loss(
        self,
        state: State,
        batch: Batch,
        measure: bool,
        task: Float[Tensor, "K B D"] | None = None,
    ) -> Term:
        """Compute the weighted loss (K,) of a batch, and metrics if they are to be measured.

        Its gradient at the features is bounded as `rule` says; `task` is the potential's gradient
        at the whitened features, where the rule needs it.
        """
        if self.rule.clip is None:
            loss, metrics = self.term.loss(state, self.term.see(batch), measure)
            return Term(self.weight * loss, metrics)
        whitened = whiten_features(batch.z, batch.noise_scale)
        z = whitened.detach().requires_grad_()
        shift = (z - z.detach()) * (
            1.0 if batch.noise_scale is None else batch.noise_scale.detach()
        )
        probe = batch._replace(z=z, smashed=batch.smashed.detach() + shift, noise_scale=None)
        loss, metrics = self.term.loss(state, self.term.see(probe), measure)
        if loss.requires_grad:
            torch.autograd.backward(self.weight * loss, torch.ones_like(loss))
        if z.grad is None:  # no class carries a signal
            return Term(self.weight * loss.detach(), metrics)
        gradient = self.rule.bound(z.grad, task)
        # The value of the loss, the bounded gradient: straight-through.
        pull = (whitened * gradient).sum((-2, -1))
        return Term(self.weight * loss.detach() + (pull - pull.detach()), metrics)


States = dict[str, State]
"""The state of each term that acts, of all clients, by the term's name."""


def join_states(terms: Sequence[WeightedTerm], stored: Sequence[State | None]) -> States:
    """Join the states that clients kept, those of the terms that act; see `part_states`.

    Args:
        terms: Those that act in the round; of each, all clients have a state or none has.
        stored: What each client kept of its last round, None before its first.

    Returns:
        The state of each term that there is one of.
    """
    states: States = {}
    for weighted in terms:
        rows = [select_state(state, weighted.name) for state in stored]
        if present := [row for row in rows if row is not None]:
            states[weighted.name] = stack_states(present)
    return states


def refresh_terms(
    terms: Sequence[WeightedTerm],
    states: States,
    read_features: FeatureReader,
    streams: Sequence[Streams],
    *,
    step: int = 0,
    epochs: Sequence[int] = (),
    device: torch.device = CPU,
) -> States:
    """Make the states that a round begins with, and compute statistics again when they are due.

    Statistics are computed on the CPU.

    Args:
        terms: Those that act in the round.
        states: The state of each term; at step 0 a term may have none.
        read_features: Reads features of all clients.
        streams: Random streams of each client.
        step: Steps taken so far; at 0 all is due.
        epochs: Steps of each client's local epoch.
        device: Device of the steps.

    Returns:
        The state of each term; a tensor that learns is a leaf.
    """
    after = dict(states)
    for weighted in terms:
        is_due = [step == 0 or weighted.term.is_refresh_due(step, epoch) for epoch in epochs]
        if step and not any(is_due):
            continue
        old = states.get(weighted.name)
        old = None if old is None else _place_state(old, CPU)
        new = weighted.refresh(old, read_features, streams, step)
        if old is not None and not all(is_due):
            new = _select_rows(torch.tensor(is_due), new, old)
        after[weighted.name] = _place_state(new, device)
    return after


def _select_rows(is_new: Bool[Tensor, " K"], new: State, old: State) -> State:
    """Select the state of each client from two; a tensor that learns is a leaf."""

    def select(name: str) -> Tensor:
        rows = is_new.view(-1, *[1] * (new[name].dim() - 1))
        chosen = torch.where(rows, new[name].detach(), old[name].detach())
        return chosen.requires_grad_(old[name].requires_grad)

    return {name: new[name] if new[name] is old[name] else select(name) for name in new}


def part_states(
    terms: Sequence[WeightedTerm], states: States, stored: Sequence[State | None]
) -> list[State]:
    """Split the states by client; of a term that did not act a client keeps what it had.

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
        term = weighted.term
        loss = term.loss(states[weighted.name], term.see(probe), False).loss.sum()
        words = f"gave a loss that is not finite ({loss.item():g})"
        if loss.isfinite():
            if not loss.requires_grad:
                continue
            words = "gave a finite loss whose gradient is not finite"
            (gradient,) = torch.autograd.grad(loss, z, allow_unused=True)
            if gradient is None or gradient.isfinite().all():
                continue
        raise DivergedError(f"{term.title} {words}, though its features are; {term.remedy}")
