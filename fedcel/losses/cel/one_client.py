"""A conditional entropy loss of one client, for a loop of one's own and for tests."""

from collections.abc import Iterator

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fedcel.losses.cel.conditional_entropy import CEL
from fedcel.losses.protocol import (
    FeatureBatches,
    StackedFeatures,
    State,
    Term,
    select_row,
    stack_states,
)


class OneClient:
    """The loss of K clients for one, as `ConditionalEntropy`.

    Args:
        term: The loss, bound to a cut; it sees the features as they are given.
    """

    def __init__(self, term: CEL) -> None:
        self.term = term

    def refresh(
        self, state: State | None, batches: FeatureBatches, generator: torch.Generator
    ) -> State:
        """Compute the statistics; see `ConditionalEntropy.refresh`."""

        def read() -> Iterator[StackedFeatures]:
            return (StackedFeatures(z, y, torch.zeros_like(y)) for z, y in batches())

        stacked = None if state is None else stack_states([state])
        return select_row(self.term.fit(stacked, read, [generator]), 0)

    def loss(
        self, state: State, z: Float[Tensor, "B D"], y: Int[Tensor, " B"], measure: bool = True
    ) -> Term:
        """Compute the loss of one batch; see `ConditionalEntropy.loss`."""
        stacked = {name: tensor.unsqueeze(0) for name, tensor in state.items()}
        loss, metrics = self.term.evaluate(stacked, z.unsqueeze(0), y.unsqueeze(0), measure)
        return Term(loss[0], {n: value[0] for n, value in metrics.items() if not value.isnan()})

    def step(self, state: State, z: Float[Tensor, "B D"], y: Int[Tensor, " B"]) -> State:
        """Move what the loss learns itself; see `ConditionalEntropy.step`."""
        stacked = stack_states([state])
        for name, tensor in state.items():
            gradient, tensor.grad = tensor.grad, None
            stacked[name].grad = None if gradient is None else gradient.unsqueeze(0)
        return select_row(self.term.move(stacked), 0)
