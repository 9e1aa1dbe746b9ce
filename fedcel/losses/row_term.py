"""Losses that know one client only, mapped over the clients row by row."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import torch

from fedcel.losses.protocol import FeatureReader, State, Term, select_row, stack_states
from fedcel.losses.terms import Batch, LossTerm, Streams


class RowTerm(LossTerm):
    """Base of terms by a loss of one client: a subclass says what that is called with."""

    takes_stacks: ClassVar[bool] = False
    """A user's loss may keep states of unequal shapes, so an engine trains one client at a time."""

    @abstractmethod
    def refresh_row(
        self, state: State | None, read_features: FeatureReader, stream: Streams, step: int
    ) -> State:
        """Return the statistics of one client, whose features are the only ones."""

    @abstractmethod
    def evaluate_row(self, state: State, batch: Batch, measure: bool) -> Term:
        """Return the loss of one client's batch, without the first dimension."""

    @abstractmethod
    def move_row(self, state: State, batch: Batch) -> State:
        """Return one client's state after the backward pass."""

    def start(
        self, state: State | None, read_features: FeatureReader, streams: Sequence[Streams]
    ) -> State:
        """Make the state of each client; see `LossTerm.start`."""
        rows = [None if state is None else select_row(state, k) for k in range(len(streams))]
        return self._refresh_rows(rows, read_features, streams, step=0)

    def loss(self, state: State, batch: Batch, measure: bool) -> Term:
        """Compute the loss of each client; see `LossTerm.loss`."""
        terms = [
            self.evaluate_row({n: t[k] for n, t in state.items()}, select_client(batch, k), measure)
            for k in range(len(batch.y))
        ]
        names = {name: 0 for term in terms for name in term.metrics}
        missing = torch.full_like(terms[0].loss.detach(), torch.nan)
        metrics = {n: torch.stack([t.metrics.get(n, missing) for t in terms]) for n in names}
        return Term(torch.stack([term.loss for term in terms]), metrics)

    def update(self, state: State, batch: Batch) -> State:
        """Move what each client's loss learns; see `LossTerm.update`."""
        detached = batch._replace(z=batch.z.detach(), smashed=batch.smashed.detach())
        return stack_states(
            [
                self.move_row(take_row(state, k), select_client(detached, k))
                for k in range(len(batch.y))
            ]
        )

    def _refresh_rows(
        self,
        rows: Sequence[State | None],
        read_features: FeatureReader,
        streams: Sequence[Streams],
        *,
        step: int,
    ) -> State:
        def read_row(k: int) -> FeatureReader:
            return lambda: (
                type(part)(*(values[part.client == k] for values in part))
                for part in read_features()
            )

        return stack_states(
            [
                self.refresh_row(row, read_row(k), stream, step)
                for k, (row, stream) in enumerate(zip(rows, streams, strict=True))
            ]
        )


def select_client(batch: Batch, row: int) -> Batch:
    """Select one client's batch, without the first dimension."""
    scale = None if batch.noise_scale is None else batch.noise_scale[row]
    return Batch(batch.x[row], batch.z[row], batch.smashed[row], batch.y[row], scale)


def take_row(state: State, row: int) -> State:
    """Select one client's state with the gradient that it gathered."""
    selected = {}
    for name, tensor in state.items():
        selected[name] = tensor.detach()[row].requires_grad_(tensor.requires_grad)
        if tensor.grad is not None:
            selected[name].grad = tensor.grad[row]
    return selected
