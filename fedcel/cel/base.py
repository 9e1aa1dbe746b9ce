"""What every conditional entropy loss offers to the local update."""

from typing import NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

State = dict[str, Tensor]
"""Named tensors that one client keeps from round to round; never part of the upload."""


class Term(NamedTuple):
    """One batch's loss in nats, and what there is to log about it."""

    loss: Float[Tensor, ""]
    metrics: dict[str, Float[Tensor, ""]]


@runtime_checkable
class ConditionalEntropy(Protocol):
    """A loss of smashed data z (B, D) and labels y (B,) that keeps each class close together."""

    def refresh(
        self,
        state: State | None,
        z: Float[Tensor, "N D"],
        y: Int[Tensor, " N"],
        generator: torch.Generator,
    ) -> State:
        """Return statistics of all the client's data, warm-started from `state` if there is one."""
        ...

    def loss(
        self, state: State, z: Float[Tensor, "B D"], y: Int[Tensor, " B"], measure: bool = True
    ) -> Term:
        """Return the differentiable loss of one batch; `state` is not changed.

        Without `measure` there are no metrics: measuring takes as long as the loss.
        """
        ...

    def step(self, state: State) -> State:
        """Return the state after the backward pass (a learned attention moves here)."""
        ...
