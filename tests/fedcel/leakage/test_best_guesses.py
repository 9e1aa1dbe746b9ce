"""The optimal attacker's guesses at single messages, against Bayes' rule by hand."""

import math

import torch
from torch import Tensor

from fedcel.leakage import LOG_PROB, Law, best_guesses
from tests.fedcel.seeded import seeded


class NoisyValue:
    """One pixel, sent with Gaussian noise."""

    name = "noisy-value"
    grants = frozenset({LOG_PROB})

    def __init__(self, sigma: float) -> None:
        self.sigma = sigma

    def sample(self, images: Tensor, generator: torch.Generator) -> Tensor:
        values = images.flatten(1)
        return values + self.sigma * torch.randn(values.shape, generator=generator)

    def law_of(self, images: Tensor) -> Law:
        gap = 2 * self.sigma**2
        return lambda observed: -(observed[:, None] - images.flatten(1)[None]).square().sum(2) / gap


def test_probabilities_are_those_of_bayes_rule() -> None:
    """Three images on a line, a message between the first two."""
    images = torch.tensor([0.0, 0.5, 1.0]).view(3, 1, 1, 1)
    observation = NoisyValue(0.2)
    positions, probabilities = best_guesses(observation, images, torch.tensor([0]), seeded(3))
    message = float(observation.sample(images[:1], seeded(3)))
    weights = [math.exp(-((message - x) ** 2) / (2 * 0.2**2)) for x in (0.0, 0.5, 1.0)]
    expected = sorted(((w / sum(weights), i) for i, w in enumerate(weights)), reverse=True)
    assert positions[0].tolist() == [i for _, i in expected]
    torch.testing.assert_close(
        probabilities[0], torch.tensor([p for p, _ in expected], dtype=torch.float64)
    )


def test_more_guesses_than_images_are_all_images() -> None:
    """No guess is made up."""
    images = torch.tensor([0.0, 1.0]).view(2, 1, 1, 1)
    positions, probabilities = best_guesses(
        NoisyValue(0.1), images, torch.arange(2), torch.Generator(), count=5
    )
    assert positions.shape == (2, 2)
    torch.testing.assert_close(probabilities.sum(1), torch.ones(2, dtype=torch.float64))
