"""What every conditional entropy loss offers to the local update."""

from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fedcel.short_repr import summarise_record

State = dict[str, Tensor]
"""Named tensors that one client keeps from round to round; never part of the upload."""

FeatureBatches = Callable[[], Iterator[tuple[Tensor, Tensor]]]
"""Reads all the client's features (n, D) and labels (n,), encoded batch by batch on the way.

Each call starts anew; a loss without statistics never calls it.
"""


class StackedFeatures(NamedTuple):
    """All features of several clients, client after client.

    Attributes:
        z: Features (N, D).
        y: Labels (N,).
        client: Whose each example is, from 0 (N,).
    """

    z: Float[Tensor, "N D"]
    y: Int[Tensor, " N"]
    client: Int[Tensor, " N"]

    def __repr__(self) -> str:
        """Show shapes in the place of numbers."""
        return summarise_record(self)


ReadStackedFeatures = Callable[[], StackedFeatures | None]
"""Encodes the images of several clients at once; None where they are too many."""


class Term(NamedTuple):
    """One batch's loss, and what there is to log about it.

    Attributes:
        loss: A scalar with a gradient, in the unit that the loss names (mostly nats).
        metrics: Scalars without a gradient, by the name under which they are logged.
    """

    loss: Float[Tensor, ""]
    metrics: dict[str, Float[Tensor, ""]]

    def __repr__(self) -> str:
        """Show shapes in the place of numbers."""
        return summarise_record(self)


@runtime_checkable
class ConditionalEntropy(Protocol):
    """A loss that keeps the features of each class close together.

    All arguments are passed by position, so that a loss of your own may name them as it likes.
    """

    def refresh(
        self, state: State | None, batches: FeatureBatches, generator: torch.Generator
    ) -> State:
        """Compute the statistics that the loss needs, before a round and each local epoch.

        Args:
            state: The state of the last step, to start from; None at a client's first round.
            batches: Reads all the client's features and labels.
            generator: The only source of random numbers.

        Returns:
            The state for the next batches.
        """
        ...

    def loss(
        self, state: State, z: Float[Tensor, "B D"], y: Int[Tensor, " B"], measure: bool = True
    ) -> Term:
        """Compute the loss of one batch.

        Args:
            state: The current state, which is not changed.
            z: Features (B, D), with a gradient.
            y: Labels (B,), from 0.
            measure: Whether to compute metrics, which takes as long as the loss.

        Returns:
            The loss, and its metrics or an empty dictionary.
        """
        ...

    def step(self, state: State, z: Float[Tensor, "B D"], y: Int[Tensor, " B"]) -> State:
        """Move what the loss learns itself, such as an attention, after the backward pass.

        Args:
            state: The state whose tensors gathered their gradient.
            z: Features of the batch (B, D), without a gradient.
            y: Labels (B,).

        Returns:
            The state for the next batch.
        """
        ...


class Stateless:
    """Base of losses that keep nothing between batches: `refresh` and `step` have no effect."""

    def refresh(
        self, state: State | None, batches: FeatureBatches, generator: torch.Generator
    ) -> State:
        """Return an empty state; see `ConditionalEntropy.refresh`."""
        return {}

    def refresh_stack(self, state: State, read_features: ReadStackedFeatures) -> State:
        """Return an empty state, of several clients at once."""
        return {}

    def step(self, state: State, z: Float[Tensor, "*k B D"], y: Int[Tensor, "*k B"]) -> State:
        """Return the state as it is; see `ConditionalEntropy.step`."""
        return state


def split_features(
    z: Float[Tensor, "N D"], y: Int[Tensor, " N"], size: int = 1024
) -> FeatureBatches:
    """Turn features that are in memory into what `ConditionalEntropy.refresh` reads.

    Args:
        z: Features (N, D).
        y: Labels (N,).
        size: Examples in each batch, 1 or more.

    Returns:
        A function that yields the batches in order, from the first at each call.
    """
    return lambda: zip(torch.split(z, size), torch.split(y, size), strict=True)
