"""Terms added to the potential: conditional entropy losses and rivals, as the trainer sees them.

A term computes the batches of K clients at once: its state, its batch and its value have a first
dimension, a client a row. A loss with a true `takes_stacks` does so by itself; any other, such as a
user's own, knows one client only, and K is 1.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fedcel.errors import DivergedError
from fedcel.losses.defences.protocol import Defence, LawDefence
from fedcel.losses.protocol import (
    ConditionalEntropy,
    FeatureReader,
    StackedEntropy,
    StackedFeatures,
    State,
    Term,
    select_row,
    stack_states,
)
from fedcel.named_tensors import add_prefix, select_prefix
from fedcel.nets import whiten_features
from fedcel.short_repr import summarise_record

Streams = Callable[[str], torch.Generator]
"""Purpose -> fresh generator, bound to (seed, round, client)."""


class Batch(NamedTuple):
    """A batch of each of K clients on its way through the split network.

    Attributes:
        x: Images (K, B, C, H, W), in [0, 1].
        z: Features (K, B, D).
        smashed: Smashed data (K, B, D): z after the noise of the cut.
        y: Labels (K, B).
        noise_scale: Standard deviation of each value's noise in units of the cut's sigma
            (K, B, D); None: all are 1.
    """

    x: Float[Tensor, "K B ..."]
    z: Float[Tensor, "K B D"]
    smashed: Float[Tensor, "K B D"]
    y: Int[Tensor, "K B"]
    noise_scale: Float[Tensor, "K B D"] | None = None

    def __repr__(self) -> str:
        """Show shapes in the place of numbers."""
        return summarise_record(self)

    @property
    def whitened(self) -> Float[Tensor, "K B D"]:
        """The features in units in which the noise of each has the cut's sigma."""
        scale = self.noise_scale
        return self.z if scale is None else whiten_features(self.z, scale)


class LossTerm(ABC):
    """A loss of K clients at once, with one state for all of them."""

    takes_stacks: bool
    """Whether several clients are computed at once; else K is 1."""

    @abstractmethod
    def start(
        self,
        states: Sequence[State | None],
        read_features: FeatureReader,
        streams: Sequence[Streams],
    ) -> State:
        """Make the state that a round begins with.

        Args:
            states: What each client kept of its last round, None before its first; of all or none.
            read_features: Reads all features of all clients.
            streams: The only source of random numbers of each client.

        Returns:
            The state of all clients.
        """

    def refresh(
        self,
        state: State,
        read_features: FeatureReader,
        streams: Sequence[Streams],
        step: int,
    ) -> State:
        """Compute statistics anew within a round; without any the state stays."""
        return state

    @abstractmethod
    def evaluate(self, state: State, batch: Batch, measure: bool) -> Term:
        """Compute the loss (K,) of a batch, and metrics (K,), NaN where a client has none."""

    @abstractmethod
    def update(self, state: State, batch: Batch) -> State:
        """Move what the loss learns itself, after the backward pass."""

    def join(self, states: Sequence[State]) -> State:
        """Join the states of the clients.

        Raises:
            StackingError: They differ in names or shapes.
        """
        return stack_states(states) if self.takes_stacks else states[0]

    def part(self, state: State, count: int) -> list[State]:
        """Return the state of each client."""
        if not self.takes_stacks:
            return [state]
        return [select_row(state, k) for k in range(count)]

    def call(self, loss: Callable[..., Term], state: State, *rows: object) -> Term:
        """Call a loss on the batches of several clients, or on that of a single one.

        A stack of one would be computed by other kernels, whose sums differ in the last bit.
        """
        if self.takes_stacks and len(next(row for row in rows if isinstance(row, Tensor))) > 1:
            return loss(state, *rows)
        if self.takes_stacks:
            state = {name: tensor.squeeze(0) for name, tensor in state.items()}
        term = loss(state, *(row.squeeze(0) if isinstance(row, Tensor) else row for row in rows))
        metrics = {name: value.unsqueeze(0) for name, value in term.metrics.items()}
        return Term(term.loss.unsqueeze(0), metrics)


@final
class CELTerm(LossTerm):
    """A conditional entropy loss, of whitened features or of the mean of each channel.

    Args:
        loss: The loss.
        positions: Positions of each channel in z, which holds channel after channel; 1: all
            features are seen. A small spread of the means does not bound what positions tell.
    """

    def __init__(self, loss: ConditionalEntropy, positions: int = 1) -> None:
        self.loss, self.positions = loss, positions
        self.takes_stacks = bool(getattr(loss, "takes_stacks", False))

    def start(
        self,
        states: Sequence[State | None],
        read_features: FeatureReader,
        streams: Sequence[Streams],
    ) -> State:
        """Compute the statistics before the first step; see `LossTerm.start`."""
        stored = [state for state in states if state is not None]
        return self._refresh(self.join(stored) if stored else None, read_features, streams, step=0)

    def refresh(
        self,
        state: State,
        read_features: FeatureReader,
        streams: Sequence[Streams],
        step: int,
    ) -> State:
        """Compute the statistics anew; see `LossTerm.refresh`."""
        return self._refresh(state, read_features, streams, step=step)

    def evaluate(self, state: State, batch: Batch, measure: bool) -> Term:
        """Compute the loss of the features; see `LossTerm.evaluate`."""
        return self.evaluate_features(state, batch.whitened, batch.y, measure)

    def evaluate_features(
        self, state: State, z: Float[Tensor, "K B D"], y: Int[Tensor, "K B"], measure: bool
    ) -> Term:
        """Compute the loss of whitened features."""
        return self.call(self.loss.loss, state, pool_positions(z, self.positions), y, measure)

    def update(self, state: State, batch: Batch) -> State:
        """Move what the loss learns; see `LossTerm.update`."""
        z, y = pool_positions(batch.whitened.detach(), self.positions), batch.y
        return (
            self.loss.step(state, z, y) if self.takes_stacks else self.loss.step(state, z[0], y[0])
        )

    def _refresh(
        self,
        state: State | None,
        read_features: FeatureReader,
        streams: Sequence[Streams],
        *,
        step: int,
    ) -> State:
        generators = [stream(f"refresh-{step}") for stream in streams]

        def read() -> Iterator[StackedFeatures]:
            for part in read_features():
                yield part._replace(z=pool_positions(part.z, self.positions))

        if isinstance(self.loss, StackedEntropy):
            return self.loss.refresh_stack(state, read, generators)
        return self.loss.refresh(state, lambda: ((z, y) for z, y, _ in read()), generators[0])


def pool_positions(z: Float[Tensor, "*k B D"], positions: int) -> Float[Tensor, "*k B C"]:
    """Return the mean of each channel over its positions, of features channel after channel."""
    return z if positions == 1 else z.reshape(*z.shape[:-1], -1, positions).mean(-1)


@final
class DefenceTerm(LossTerm):
    """A rival's loss: of images and what is sent of them, or of the law of what is sent.

    Args:
        loss: The loss.
    """

    def __init__(self, loss: Defence | LawDefence) -> None:
        self.loss = loss
        self.takes_stacks = bool(getattr(loss, "takes_stacks", False))

    def start(
        self,
        states: Sequence[State | None],
        read_features: FeatureReader,
        streams: Sequence[Streams],
    ) -> State:
        """Make each client's state; see `LossTerm.start`."""
        pairs = zip(states, streams, strict=True)
        return self.join([self.loss.refresh(state, stream("defence")) for state, stream in pairs])

    def evaluate(self, state: State, batch: Batch, measure: bool) -> Term:
        """Compute the loss of what is sent; see `LossTerm.evaluate`."""
        loss = self.loss
        if isinstance(loss, LawDefence):
            scale = torch.ones_like(batch.z) if batch.noise_scale is None else batch.noise_scale
            return self.call(
                lambda state, z, scale, y: loss.law_loss(state, z, scale, y=y, measure=measure),
                *(state, batch.z, scale, batch.y),
            )
        return self.call(loss.loss, state, batch.x, batch.z, batch.smashed, measure)

    def update(self, state: State, batch: Batch) -> State:
        """Move what the loss learns; see `LossTerm.update`."""
        return self.loss.step(state)


class TermSource(NamedTuple):
    """What makes a term of the loss, for messages.

    Attributes:
        name: How errors name it.
        remedy: What to do where the term is not finite.
    """

    name: str
    remedy: str = "lower the learning rate"


class GradientRule(NamedTuple):
    """How a term's gradient reaches the parameters.

    Attributes:
        clip: Largest norm of the weighted gradient at the features of one image, or None.
        has_own_pass: Whether the term has a backward pass of its own, into the encoder alone.
        momentum: Share of the last step's in the running mean of the term's gradient that the
            encoder follows; 0: each step's own. Above 0 the term needs a backward pass of its own.
    """

    clip: float | None = None
    has_own_pass: bool = False
    momentum: float = 0.0


JOINT = GradientRule()
"""Along with the cross-entropy, in one backward pass."""


class WeightedTerm(NamedTuple):
    """A term, how much it counts in a round, and how its gradient reaches the parameters."""

    name: str
    """Prefix of its tensors in a client's state."""
    term: LossTerm
    weight: float
    rule: GradientRule = JOINT
    source: TermSource = TermSource("a loss")

    def evaluate(self, state: State, batch: Batch, measure: bool) -> Term:
        """Compute the weighted loss (K,) of a batch, and metrics if they are to be measured."""
        if self.rule.clip is None or not isinstance(self.term, CELTerm):
            loss, metrics = self.term.evaluate(state, batch, measure)
            return Term(self.weight * loss, metrics)
        z = batch.whitened.detach().requires_grad_()
        loss, metrics = self.term.evaluate_features(state, z, batch.y, measure)
        clipped = clip_feature_gradient(self.weight * loss, z, batch.whitened, self.rule.clip)
        return Term(clipped, metrics)


States = dict[str, State]
"""The state of each term that acts, of all clients, by the term's name."""


def start_terms(
    terms: Sequence[WeightedTerm],
    stored: Sequence[State | None],
    read_features: FeatureReader,
    streams: Sequence[Streams],
) -> States:
    """Make the states that a round begins with.

    Args:
        terms: Those that act in the round.
        stored: What each client kept of its last round, None before its first.
        read_features: Reads all features of all clients.
        streams: Random streams of each client.

    Returns:
        The state of each term.
    """
    return {
        weighted.name: weighted.term.start(
            [select_state(state, weighted.name) for state in stored], read_features, streams
        )
        for weighted in terms
    }


def part_states(
    terms: Sequence[WeightedTerm], states: States, stored: Sequence[State | None]
) -> list[State]:
    """Part the states into what each client keeps: those of terms that acted, its own of others.

    Args:
        terms: Those that acted in the round.
        states: The state of each term.
        stored: What each client kept of its last round, None before its first.

    Returns:
        Each client's state.
    """
    after = [dict(state or {}) for state in stored]
    for weighted in terms:
        parts = weighted.term.part(states[weighted.name], len(stored))
        for state, part in zip(after, parts, strict=True):
            for name in select_prefix(state, f"{weighted.name}."):
                del state[f"{weighted.name}.{name}"]
            state |= add_prefix(f"{weighted.name}.", part)
    return after


def select_state(state: State | None, name: str) -> State | None:
    """Select the tensors of one term from a client's state.

    Args:
        state: The client's state, or None before its first round.
        name: The term.

    Returns:
        The tensors under the term's own names, or None where there are none.
    """
    return select_prefix(state or {}, f"{name}.") or None


def clip_feature_gradient(
    loss: Float[Tensor, " K"],
    leaf: Float[Tensor, "K B D"],
    z: Float[Tensor, "K B D"],
    max_norm: float,
) -> Float[Tensor, " K"]:
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
        loss = weighted.term.evaluate(states[weighted.name], probe, False).loss.sum()
        words = f"gave a loss that is not finite ({loss.item():g})"
        if loss.isfinite():
            words = "gave a finite loss whose gradient is not finite"
            (gradient,) = torch.autograd.grad(loss, z, allow_unused=True)
            if gradient is None or gradient.isfinite().all():
                continue
        name, remedy = weighted.source
        raise DivergedError(f"{name} {words}, though its features are; {remedy}")
