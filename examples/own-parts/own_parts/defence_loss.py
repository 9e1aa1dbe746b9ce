"""A defence that acts in training: no feature should follow a pixel."""

from fedcel import Batch, ClientLoss, Settings, Term
from fedcel.losses.cel import State

OFFSET = 1e-6  # keeps the correlation of what does not vary at 0


class Uncorrelated(ClientLoss):
    """The mean squared correlation of a feature with a pixel, over the images of a batch.

    A linear decoder lives on it. What a decoder with layers sees it leaves: measure that.
    """

    def __init__(self, settings: Settings, shape: tuple[int, ...]) -> None:
        """Need neither settings nor shape; `defence.strength` weighs the loss."""

    def loss(self, state: State, batch: Batch, measure: bool = True) -> Term:
        """Return the loss of images x (B, C, H, W) and their features z (B, D), in [0, 1]."""
        x, z = batch.x, batch.z
        pixels, features = (part.flatten(1) - part.flatten(1).mean(0) for part in (x, z))
        covariance = features.T @ pixels / len(z)
        power = features.square().mean(0)[:, None] * pixels.square().mean(0)
        loss = (covariance.square() / (power + OFFSET)).mean()
        return Term(loss, {"pixel-correlation": loss.detach()} if measure else {})
