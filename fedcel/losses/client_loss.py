"""A loss of one client as a term of several, and a term as the loss of one client."""

from collections.abc import Iterator, Sequence

import torch

from fedcel.losses.protocol import (
    Batch,
    ClientLoss,
    FeatureBatches,
    FeatureReader,
    StackedFeatures,
    State,
    Term,
)
from fedcel.losses.terms import LossTerm
from fedcel.tensors import select_row, stack_states


class ClientLossTerm(LossTerm):
    """A loss of one client as a term: it is trained one client at a time.

    Args:
        loss: The loss, whose states may be of other shapes for other clients.
        metric_names: Names of its metrics, as far as they are known.
    """

    def __init__(self, loss: ClientLoss, metric_names: frozenset[str] = frozenset()) -> None:
        self._loss, self._metric_names = loss, metric_names

    @property
    def takes_stacks(self) -> bool:
        """Whether several clients are computed at once: no."""
        return False

    @property
    def metric_names(self) -> frozenset[str]:
        """Names of its metrics, as far as they are known."""
        return self._metric_names

    def refresh(
        self,
        state: State | None,
        read_features: FeatureReader,
        generators: Sequence[torch.Generator],
    ) -> State:
        """Compute the client's statistics; see `ClientLoss.refresh`."""
        row = None if state is None else select_row(state, 0)
        after = self._loss.refresh(
            row, lambda: ((z, y) for z, y, _ in read_features()), generators[0]
        )
        return stack_states([after])

    def loss(self, state: State, batch: Batch, measure: bool) -> Term:
        """Compute the client's loss; see `ClientLoss.loss`."""
        row = {name: tensor[0] for name, tensor in state.items()}
        parts = Batch._make(None if part is None else part[0] for part in batch)
        loss, metrics = self._loss.loss(row, parts, measure)
        return Term(loss.unsqueeze(0), {n: value.unsqueeze(0) for n, value in metrics.items()})

    def update(self, state: State) -> State:
        """Move what the client's loss learns; see `ClientLoss.update`."""
        row = {}
        for name, tensor in state.items():
            row[name] = tensor.detach()[0].requires_grad_(tensor.requires_grad)
            row[name].grad = None if tensor.grad is None else tensor.grad[0]
        return stack_states([self._loss.update(row)])


class TermLoss(ClientLoss):
    """A term of several clients as the loss of one, the other way round.

    Args:
        term: The term, such as a conditional entropy loss bound to a cut.
    """

    def __init__(self, term: LossTerm) -> None:
        self.term = term

    def refresh(
        self, state: State | None, batches: FeatureBatches, generator: torch.Generator
    ) -> State:
        """Compute the client's statistics; see `ClientLoss.refresh`."""

        def read() -> Iterator[StackedFeatures]:
            return (StackedFeatures(z, y, torch.zeros_like(y)) for z, y in batches())

        before = None if state is None else stack_states([state])
        return select_row(self.term.refresh(before, read, [generator]), 0)

    def loss(self, state: State, batch: Batch, measure: bool = True) -> Term:
        """Compute the client's loss; see `ClientLoss.loss`. What was not measured is left out."""
        rows = {name: tensor.unsqueeze(0) for name, tensor in state.items()}
        parts = Batch._make(None if part is None else part.unsqueeze(0) for part in batch)
        loss, metrics = self.term.loss(rows, parts, measure)
        return Term(loss[0], {n: value[0] for n, value in metrics.items() if not value.isnan()})

    def update(self, state: State) -> State:
        """Move what the loss learns, and clear its gradient; see `ClientLoss.update`."""
        stacked = stack_states([state])
        for name, tensor in state.items():
            gradient, tensor.grad = tensor.grad, None
            stacked[name].grad = None if gradient is None else gradient.unsqueeze(0)
        return select_row(self.term.update(stacked), 0)
