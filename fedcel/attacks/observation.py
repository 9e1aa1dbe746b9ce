"""What an attacker gets to see, and what the threat model grants beyond seeing it."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from fedcel.nets import SplitNet

CHUNK = 1024  # images encoded at once where no gradient is wanted

MEAN = "mean"
"""Grant: the differentiable mean of the observation, as an `ObservationMean`."""
LOG_PROB = "log-prob"
"""Grant: the exact likelihood of what was observed, as an `ObservationLikelihood`."""
FREE_QUERIES = "free-queries"
"""Grant: the attacker samples as often as he likes, because he owns a copy of the device."""
NOISELESS = "noiseless"
"""Grant: an image always gives the same observation."""


@runtime_checkable
class Observation(Protocol):
    """A surface of the system: what an attacker sees of images, one vector each."""

    @property
    def name(self) -> str:
        """Return the kind, such as `smashed-data` or `private-logits`."""
        ...

    @property
    def grants(self) -> frozenset[str]:
        """Return what the attacker may use besides `sample`: names of the constants above."""
        ...

    def sample(
        self, images: Float[Tensor, "B C H W"], generator: torch.Generator
    ) -> Float[Tensor, "B F"]:
        """Return one fresh observation per image, every defence applied; no gradient."""
        ...


@runtime_checkable
class ObservationMean(Observation, Protocol):
    """An observation whose mean can be differentiated."""

    def mean(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B F"]:
        """Return the mean observation of each image, with a gradient."""
        ...


@runtime_checkable
class ObservationLikelihood(Observation, Protocol):
    """An observation whose law is known exactly."""

    def log_prob(
        self, observed: Float[Tensor, "Q F"], images: Float[Tensor, "M C H W"]
    ) -> Float[Tensor, "Q M"]:
        """Return log p(observed_q | image_j) in nats, up to one constant for all pairs."""
        ...


@dataclass(frozen=True)
class SmashedData:
    """The message z~ of a split network, its encoder and the law of the cut known."""

    net: SplitNet
    name: str = "smashed-data"

    @property
    def grants(self) -> frozenset[str]:
        """Return all grants but the likelihood where the message is z itself."""
        law = LOG_PROB if self.net.cut.random else NOISELESS
        return frozenset({MEAN, FREE_QUERIES, law})

    def mean(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B F"]:
        """Return E[z~], with a gradient."""
        return self.net.encode(images) * (1 - self.net.cut.dropout)

    def codes(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B F"]:
        """Return z without a gradient, in chunks."""
        with torch.no_grad():
            return torch.cat([self.net.encode(part) for part in torch.split(images, CHUNK)])

    def sample(
        self, images: Float[Tensor, "B C H W"], generator: torch.Generator
    ) -> Float[Tensor, "B F"]:
        """Return z~ with fresh noise."""
        return self.net.add_noise(self.codes(images), generator)

    def log_prob(
        self, observed: Float[Tensor, "Q F"], images: Float[Tensor, "M C H W"]
    ) -> Float[Tensor, "Q M"]:
        """Return the cut's log p(z~_q | z_j) in float64; ValueError when nothing is random."""
        return self.net.cut.log_prob(observed, self.codes(images))
