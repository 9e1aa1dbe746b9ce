"""A user's own conditional entropy loss, named by whatever goes wrong in it."""

from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fedcel.losses.contract import require_state, require_term
from fedcel.losses.protocol import ConditionalEntropy, FeatureBatches, State, Term
from fedcel.plugins import PartName, blame_part


@final
class OwnCEL:
    """A user's loss as training calls it: FailedError names it where it raises or returns wrongly.

    Args:
        part: How errors name the loss.
        loss: The loss.
    """

    def __init__(self, part: PartName, loss: ConditionalEntropy) -> None:
        self._part, self._loss = part, loss

    def refresh(
        self, state: State | None, batches: FeatureBatches, generator: torch.Generator
    ) -> State:
        """Return the loss's state; see `ConditionalEntropy.refresh`."""
        with blame_part(self._part):
            return require_state(self._loss.refresh(state, batches, generator), "refresh")

    def loss(
        self, state: State, z: Float[Tensor, "B D"], y: Int[Tensor, " B"], measure: bool = True
    ) -> Term:
        """Return the loss's term; see `ConditionalEntropy.loss`."""
        with blame_part(self._part):
            return require_term(self._loss.loss(state, z, y, measure))

    def step(self, state: State, z: Float[Tensor, "B D"], y: Int[Tensor, " B"]) -> State:
        """Return the loss's next state; see `ConditionalEntropy.step`."""
        with blame_part(self._part):
            return require_state(self._loss.step(state, z, y), "step")
