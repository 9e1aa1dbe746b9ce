"""What an attacker gets to see, and what the threat model grants beyond seeing it."""

from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from fedcel.leakage.dropout_law import mixture_misfit, most_likely_features
from fedcel.nets import SplitNet, initialise_parameters

CHUNK = 1024  # images encoded at once where no gradient is wanted

MEAN = "mean"
"""Grant: the differentiable mean of the observation, as an `ObservationMean`."""
LOG_PROB = "log-prob"
"""Grant: the exact likelihood of what was observed, as an `ObservationLikelihood`."""
FREE_QUERIES = "free-queries"
"""Grant: the attacker samples as often as he likes, because he owns a copy of the device."""
NOISELESS = "noiseless"
"""Grant: an image always gives the same observation."""
HEAD = "head"
"""Grant: the server's part of the network, as an `ObservationHead`."""
ARCHITECTURE = "architecture"
"""Grant: the encoder's layers without its parameters, as an `ObservationArchitecture`."""
LOGITS = "logits"
"""Grant: the whole network, with a gradient, as an `ObservationLogits`."""
UPDATE = "update"
"""Grant: how a client computes what it uploads, as an `ObservationUpdate`."""
FIRST_LAYER = "first-layer"
"""Grant: the first layer is W x + b of the pixels x, as an `ObservationFirstLayer`."""


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
class ObservationMisfit(Observation, Protocol):
    """An observation that says by its law how badly an image explains it."""

    def misfit(
        self, images: Float[Tensor, "B C H W"], observed: Float[Tensor, "B F"]
    ) -> Float[Tensor, " B"]:
        """Return the misfit of each image to its own observation, with a gradient.

        Unit: a value observed, squared, mean over values, as of a mean squared gap.
        """
        ...


@runtime_checkable
class ObservationPooled(Observation, Protocol):
    """An observation that says by its law what several of one image tell, where no mean does."""

    def pooled(self, parts: Float[Tensor, "B m F"]) -> Float[Tensor, "B F"]:
        """Return the mean observation of each image, as far as m fresh ones tell it."""
        ...


@runtime_checkable
class ObservationLikelihood(Observation, Protocol):
    """An observation whose law is known exactly."""

    def log_prob(
        self, observed: Float[Tensor, "Q F"], images: Float[Tensor, "M C H W"]
    ) -> Float[Tensor, "Q M"]:
        """Return log p(observed_q | image_j) in nats, up to one constant for all pairs."""
        ...


@runtime_checkable
class ObservationPaid(Observation, Protocol):
    """An observation that is paid for, whose `sample` raises SpentError when nothing is left."""

    @property
    def paid(self) -> int:
        """Return how many were paid so far."""
        ...

    @property
    def allowance(self) -> int:
        """Return how many one call of an attack may pay that makes images up."""
        ...


@runtime_checkable
class ObservationHead(Observation, Protocol):
    """An observation that a known head turns into logits, disturbed by a known defence."""

    def answer(self, observed: Float[Tensor, "B F"]) -> Float[Tensor, "B K"]:
        """Return the head's logits, with a gradient."""
        ...

    def disturb(
        self, codes: Float[Tensor, "B F"], generator: torch.Generator
    ) -> Float[Tensor, "B F"]:
        """Return what a device that encoded to `codes` would send, with a gradient."""
        ...


@runtime_checkable
class ObservationArchitecture(Observation, Protocol):
    """An observation whose encoder can be built, but not with its parameters."""

    def fresh_encoder(self, generator: torch.Generator) -> nn.Module:
        """Return an encoder (B, C, H, W) to (B, F) of the same layers, parameters drawn anew."""
        ...


@runtime_checkable
class ObservationLogits(Observation, Protocol):
    """An observation of a network that can be differentiated as a whole."""

    def logits(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B K"]:
        """Return the logits without any noise, clip or mechanism, with a gradient."""
        ...


@runtime_checkable
class ObservationUpdate(Observation, Protocol):
    """What clients upload after training on `batch` images each, one row per image.

    Rows i to i + batch - 1 are equal: the upload of the client that holds these images. The last
    client may hold fewer.
    """

    @property
    def batch(self) -> int:
        """Return the number of images behind one upload."""
        ...

    @property
    def noisy(self) -> int:
        """Return the number of values of an image that noise at the cut is added to, or 0."""
        ...

    @property
    def masked(self) -> int:
        """Return the number of values of an image that a mask at the cut may drop, or 0."""
        ...

    def update(
        self,
        images: Float[Tensor, "G b C H W"],
        labels: Int[Tensor, "G b"],
        generator: torch.Generator,
        noise: Float[Tensor, "G b F"] | None = None,
        mask: Float[Tensor, "G b F"] | None = None,
    ) -> Float[Tensor, "G P"]:
        """Return the mean upload of G clients with these images, with a gradient.

        `noise` at the cut in units of its standard deviation, and a `mask` of what is kept, between
        0 and 1; drawn afresh where they are None.
        """
        ...

    def labels(self, observed: Float[Tensor, "G P"], batch: int) -> Int[Tensor, "G b"]:
        """Return the labels that explain each upload best, ascending."""
        ...


@runtime_checkable
class ObservationFirstLayer(Observation, Protocol):
    """Uploads whose first layer sees the pixels themselves; rows as of `ObservationUpdate`."""

    @property
    def batch(self) -> int:
        """Return the number of images behind one upload."""
        ...

    def first_layer(
        self, observed: Float[Tensor, " P"]
    ) -> tuple[Float[Tensor, "U N"], Float[Tensor, " U"]]:
        """Return what one upload has of W and of b, in any unit."""
        ...


def make_refusal(observation: Observation, grant: str) -> ValueError:
    """Return the error of an attack on an observation that does not grant what it needs."""
    granted = ", ".join(sorted(observation.grants)) or "nothing"
    return ValueError(f"{observation.name!r} must grant {grant!r}, grants {granted}")


@dataclass(frozen=True)
class SmashedData:
    """The message z~ of a split network, its encoder and the law of the cut known."""

    net: SplitNet
    name: str = "smashed-data"
    fits_head: bool = True
    """Whether the head takes this message; not where those of several encoders are in a row."""

    @property
    def grants(self) -> frozenset[str]:
        """Return a message's grants: no likelihood of z itself, no head that cannot read it."""
        law = LOG_PROB if self.net.cut.is_random else NOISELESS
        head = {HEAD} if self.fits_head else set()
        return frozenset({MEAN, FREE_QUERIES, ARCHITECTURE, law} | head)

    def mean(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B F"]:
        """Return E[z~], with a gradient."""
        return self.net.encode(images) * (1 - self.net.cut.dropout)

    def misfit(
        self, images: Float[Tensor, "B C H W"], observed: Float[Tensor, "B F"]
    ) -> Float[Tensor, " B"]:
        """Return mean (z~ - z)^2 over values, under dropout that of the cut's mixture."""
        z, cut = self.net.encode(images), self.net.cut
        if cut.dropout > 0:
            return mixture_misfit(z, observed, cut)
        return (z - observed).square().mean(1)

    def pooled(self, parts: Float[Tensor, "B m F"]) -> Float[Tensor, "B F"]:
        """Return E[z~] as m messages tell it: their mean, under dropout by its mixture."""
        cut = self.net.cut
        return (
            most_likely_features(parts, cut) * (1 - cut.dropout) if cut.dropout else parts.mean(1)
        )

    def answer(self, observed: Float[Tensor, "B F"]) -> Float[Tensor, "B K"]:
        """Return the head's logits, with a gradient."""
        return self.net.answer(observed)

    def disturb(
        self, codes: Float[Tensor, "B F"], generator: torch.Generator
    ) -> Float[Tensor, "B F"]:
        """Return the codes through the cut's own noise and mask, with a gradient."""
        return self.net.add_noise(codes, generator)

    def fresh_encoder(self, generator: torch.Generator) -> nn.Module:
        """Return a copy of the encoder, every layer that can be reset drawn anew."""
        copy = deepcopy(self.net.encoder)
        seed = int(torch.randint(2**31, (), generator=generator))
        with torch.random.fork_rng(devices=[]):  # layers draw from the global state
            torch.manual_seed(seed)
            for layer in copy.modules():
                reset = getattr(layer, "reset_parameters", None)
                if callable(reset):
                    reset()
        initialise_parameters(copy, generator)
        return copy

    def to(self, place: torch.device) -> "SmashedData":
        """Return the same observation of images on another device, the net copied there."""
        return replace(self, net=deepcopy(self.net).to(place))

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
