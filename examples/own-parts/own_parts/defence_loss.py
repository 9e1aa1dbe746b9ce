"""A defence that acts in training: no feature should follow a pixel."""

import torch
from torch import Tensor

from fedcel import Settings, Term
from fedcel.losses.cel import State

OFFSET = 1e-6  # keeps the correlation of what does not vary at 0


class Uncorrelated:
    """The mean squared correlation of a feature with a pixel, over the images of a batch.

    A linear decoder lives on it. What a decoder with layers sees it leaves: measure that.
    """

    def __init__(self, settings: Settings, shape: tuple[int, ...]) -> None:
        """Need neither settings nor shape; `defence.strength` weighs the loss."""

    def refresh(self, state: State | None, generator: torch.Generator) -> State:
        """Return no state: nothing is learned here."""
        return {}

    def loss(
        self, state: State, x: Tensor, z: Tensor, smashed: Tensor, measure: bool = True
    ) -> Term:
        """Return the loss of images x (B, C, H, W) and their features z (B, D), in [0, 1]."""
        pixels, features = (part.flatten(1) - part.flatten(1).mean(0) for part in (x, z))
        covariance = features.T @ pixels / len(z)
        power = features.square().mean(0)[:, None] * pixels.square().mean(0)
        loss = (covariance.square() / (power + OFFSET)).mean()
        return Term(loss, {"pixel-correlation": loss.detach()} if measure else {})

    def step(self, state: State) -> State:
        """Return the state as it is."""
        return state
