"""Losses of one client, such as a user's own, as terms, and terms as losses of one client."""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fedcel.losses.protocol import (
    ConditionalEntropy,
    Defence,
    FeatureBatches,
    FeatureReader,
    StackedFeatures,
    State,
    Term,
    pool_positions,
    select_row,
    stack_states,
)
from fedcel.losses.terms import Batch, LossTerm, Streams


class OneClientTerm(LossTerm):
    """Base of terms by a loss of one client, whose states may be of unequal shapes.

    A subclass calls that loss with tensors that have no dimension of clients.
    """

    takes_stacks: ClassVar[bool] = False

    @abstractmethod
    def refresh_row(
        self, state: State | None, read_features: FeatureReader, stream: Streams, step: int
    ) -> State:
        """Compute the client's statistics."""

    @abstractmethod
    def evaluate_row(self, state: State, batch: Batch, measure: bool) -> Term:
        """Compute the loss of the client's batch."""

    @abstractmethod
    def move_row(self, state: State, batch: Batch) -> State:
        """Move what the loss learns, after the backward pass."""

    def refresh(
        self,
        state: State | None,
        read_features: FeatureReader,
        streams: Sequence[Streams],
        step: int,
    ) -> State:
        """Compute the client's statistics; see `LossTerm.refresh`."""
        row = None if state is None else select_row(state, 0)
        return stack_states([self.refresh_row(row, read_features, streams[0], step)])

    def loss(self, state: State, batch: Batch, measure: bool) -> Term:
        """Compute the client's loss; see `LossTerm.loss`."""
        row = {name: tensor[0] for name, tensor in state.items()}
        loss, metrics = self.evaluate_row(row, _select_client(batch), measure)
        return Term(loss.unsqueeze(0), {n: value.unsqueeze(0) for n, value in metrics.items()})

    def update(self, state: State, batch: Batch) -> State:
        """Move what the client's loss learns; see `LossTerm.update`."""
        detached = batch._replace(z=batch.z.detach(), smashed=batch.smashed.detach())
        row = {}
        for name, tensor in state.items():
            row[name] = tensor.detach()[0].requires_grad_(tensor.requires_grad)
            if tensor.grad is not None:
                row[name].grad = tensor.grad[0]
        return stack_states([self.move_row(row, _select_client(detached))])


class CELTerm(OneClientTerm):
    """A conditional entropy loss of one client as a term.

    Args:
        loss: The loss.
        positions: Positions of each channel in z, over which it sees the mean; 1: it sees all of z.
    """

    def __init__(self, loss: ConditionalEntropy, positions: int = 1) -> None:
        self._loss, self._positions = loss, positions

    def refresh_row(
        self, state: State | None, read_features: FeatureReader, stream: Streams, step: int
    ) -> State:
        """Compute the client's statistics; see `ConditionalEntropy.refresh`."""
        return self._loss.refresh(
            state,
            lambda: ((pool_positions(z, self._positions), y) for z, y, _ in read_features()),
            stream(f"refresh-{step}"),
        )

    def evaluate_row(self, state: State, batch: Batch, measure: bool) -> Term:
        """Compute the loss of the client's batch; see `ConditionalEntropy.loss`."""
        z = pool_positions(batch.whitened, self._positions)
        return self._loss.loss(state, z, batch.y, measure)

    def move_row(self, state: State, batch: Batch) -> State:
        """Move what the loss learns; see `ConditionalEntropy.step`."""
        z = pool_positions(batch.whitened.detach(), self._positions)
        return self._loss.step(state, z, batch.y)


class DefenceTerm(OneClientTerm):
    """A defence of one client as a term.

    Args:
        defence: The defence.
    """

    def __init__(self, defence: Defence) -> None:
        self._defence = defence

    def refresh_row(
        self, state: State | None, read_features: FeatureReader, stream: Streams, step: int
    ) -> State:
        """Make the client's state at a round's start; see `Defence.refresh`."""
        if step and state is not None:
            return state
        return self._defence.refresh(state, stream("defence"))

    def evaluate_row(self, state: State, batch: Batch, measure: bool) -> Term:
        """Compute the loss of the client's batch; see `Defence.loss`."""
        return self._defence.loss(state, batch.x, batch.z, batch.smashed, measure)

    def move_row(self, state: State, batch: Batch) -> State:
        """Move what the defence learns; see `Defence.step`."""
        return self._defence.step(state)


class OneClient:
    """A term as a loss of one client, `ConditionalEntropy`, for a loop of one's own.

    Args:
        term: The term, of features only.
    """

    def __init__(self, term: LossTerm) -> None:
        self.term = term

    def refresh(
        self, state: State | None, batches: FeatureBatches, generator: torch.Generator
    ) -> State:
        """Compute the statistics; see `ConditionalEntropy.refresh`."""

        def read() -> Iterator[StackedFeatures]:
            return (StackedFeatures(z, y, torch.zeros_like(y)) for z, y in batches())

        stacked = None if state is None else stack_states([state])
        return select_row(self.term.refresh(stacked, read, [lambda purpose: generator], 0), 0)

    def loss(
        self, state: State, z: Float[Tensor, "B D"], y: Int[Tensor, " B"], measure: bool = True
    ) -> Term:
        """Compute the loss of one batch; see `ConditionalEntropy.loss`."""
        return self.evaluate_batch(state, Batch(z, z, z, y), measure)

    def step(self, state: State, z: Float[Tensor, "B D"], y: Int[Tensor, " B"]) -> State:
        """Move what the loss learns itself; see `ConditionalEntropy.step`."""
        stacked = stack_states([state])
        for name, tensor in state.items():
            gradient, tensor.grad = tensor.grad, None
            stacked[name].grad = None if gradient is None else gradient.unsqueeze(0)
        z, y = z.unsqueeze(0), y.unsqueeze(0)
        return select_row(self.term.update(stacked, Batch(z, z, z, y)), 0)

    def evaluate_batch(self, state: State, batch: Batch, measure: bool) -> Term:
        """Compute the loss of one batch without a dimension of clients, and what it measures."""
        rows = {name: tensor.unsqueeze(0) for name, tensor in state.items()}
        parts = Batch._make(None if part is None else part.unsqueeze(0) for part in batch)
        loss, metrics = self.term.loss(rows, parts, measure)
        return Term(loss[0], {n: value[0] for n, value in metrics.items() if not value.isnan()})


def _select_client(batch: Batch) -> Batch:
    """Return the only client's batch, without the dimension of clients."""
    return Batch._make(None if part is None else part[0] for part in batch)
