"""The optimal attacker at work on a few messages: the likeliest images, and how sure it is."""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fedcel.leakage.observation import Observation
from fedcel.leakage.observation_law import find_law
from fedcel.short_repr import summarise_record


class BestGuesses(NamedTuple):
    """The likeliest senders of a few messages among M images."""

    images: Int[Tensor, "Q G"]
    """Positions of the likeliest images, the likeliest first."""
    probabilities: Float[Tensor, "Q G"]
    """Their posterior probabilities, for an image drawn uniformly from the M."""

    def __repr__(self) -> str:
        """Show shapes in the place of numbers."""
        return summarise_record(self)


def best_guesses(
    observation: Observation,
    images: Float[Tensor, "M C H W"],
    senders: Int[Tensor, " Q"],
    generator: torch.Generator,
    *,
    count: int = 3,
) -> BestGuesses:
    """Draw one message of each sender and find the images that most probably sent it.

    Args:
        observation: What is seen of an image; its law must be known.
        images: The candidates, (M, C, H, W) in [0, 1].
        senders: Positions of the images that send.
        generator: Draws the noise.
        count: Guesses for each message; M where that is less.

    Returns:
        The guesses.

    Raises:
        ValueError: The observation grants no likelihood.

    References:
        Bayes' rule with a uniform prior over the candidates.
    """
    law = find_law(observation, images)
    observed = observation.sample(images[senders], generator)
    posterior = law(observed).double().softmax(1).cpu()
    probabilities, positions = posterior.topk(min(count, len(images)))
    return BestGuesses(positions, probabilities)
