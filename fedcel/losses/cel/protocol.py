"""What every conditional entropy loss offers to the local update."""

from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

State = dict[str, Tensor]
"""Named tensors that one client keeps from round to round; never part of the upload."""

Codes = Callable[[], Iterator[tuple[Tensor, Tensor]]]
"""All the client's smashed data and labels in pieces (n, D), (n,), encoded as they are asked for.

Each call starts anew; a loss without statistics never calls it.
"""


class Term(NamedTuple):
    """One batch's loss in nats, and what there is to log about it."""

    loss: Float[Tensor, ""]
    metrics: dict[str, Float[Tensor, ""]]


@runtime_checkable
class ConditionalEntropy(Protocol):
    """A loss of smashed data z (B, D) and labels y (B,) that keeps each class close together."""

    def refresh(self, state: State | None, codes: Codes, generator: torch.Generator) -> State:
        """Return statistics of all the client's data, warm-started from `state` if there is one."""
        ...

    def loss(
        self, state: State, z: Float[Tensor, "B D"], y: Int[Tensor, " B"], measure: bool = True
    ) -> Term:
        """Return the differentiable loss of one batch; `state` is not changed.

        Without `measure` there are no metrics: measuring takes as long as the loss.
        """
        ...

    def step(self, state: State, z: Float[Tensor, "B D"], y: Int[Tensor, " B"]) -> State:
        """Return the state after the backward pass of this batch, z without a gradient.

        A learned attention moves here, a memory bank takes the batch in.
        """
        ...


def split_pieces(z: Float[Tensor, "N D"], y: Int[Tensor, " N"], size: int = 1024) -> Codes:
    """Return smashed data that are there already as what `refresh` reads, `size` at a time."""
    return lambda: zip(torch.split(z, size), torch.split(y, size), strict=True)
