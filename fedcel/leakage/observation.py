"""Observations that an attacker makes, and what the threat model grants beyond them."""

from collections.abc import Callable
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

MEAN = "mean"
"""Grant: the differentiable mean of the observation, as an `ObservationMean`."""
LOG_PROB = "log-prob"
"""Grant: the exact likelihood of what was observed, as an `ObservationLaw`."""
FREE_QUERIES = "free-queries"
"""Grant: the attacker samples without limit, with a copy of the device."""
NOISELESS = "noiseless"
"""Grant: an image always gives the same observation."""
HEAD = "head"
"""Grant: the server's part of the network, as an `ObservationHead`."""
ARCHITECTURE = "architecture"
"""Grant: the encoder's layers without its parameters, as an `ObservationArchitecture`."""
UPDATE = "update"
"""Grant: how a client computes what it uploads, as an `ObservationUpdate`."""
FIRST_LAYER = "first-layer"
"""Grant: the first layer is W x + b of the pixels x, as an `ObservationFirstLayer`."""

Law = Callable[[Float[Tensor, "Q F"]], Float[Tensor, "Q M"]]
"""log p(observed_q | image_j) of given images, in nats, up to one constant for all pairs."""


@runtime_checkable
class Observation(Protocol):
    """A surface of the system: what an attacker sees of images in [0, 1], one vector each."""

    @property
    def name(self) -> str:
        """The kind, such as `smashed-data` or `private-logits`."""

    @property
    def grants(self) -> frozenset[str]:
        """Knowledge of the attacker besides `sample`: values of the constants above."""

    def sample(
        self, images: Float[Tensor, "B C H W"], generator: torch.Generator
    ) -> Float[Tensor, "B F"]:
        """Observe each image once, with fresh noise, every defence applied; no gradient."""


@runtime_checkable
class ObservationMean(Observation, Protocol):
    """An observation whose mean can be differentiated."""

    def mean(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B F"]:
        """Compute the mean observation of each image, with a gradient."""


@runtime_checkable
class ObservationMisfit(Observation, Protocol):
    """An observation whose law tells how badly an image explains what was seen."""

    def misfit(
        self, images: Float[Tensor, "B C H W"], observed: Float[Tensor, "B F"]
    ) -> Float[Tensor, " B"]:
        """Compute how badly each image explains its own observation, with a gradient.

        A number like a mean squared error: a mean over values, in the unit of one, squared.
        """


@runtime_checkable
class ObservationPooled(Observation, Protocol):
    """An observation whose law tells how to combine several of one image, where no mean does."""

    def pooled(self, parts: Float[Tensor, "B m F"]) -> Float[Tensor, "B F"]:
        """Estimate the mean observation of each image from m fresh ones."""


@runtime_checkable
class ObservationLaw(Observation, Protocol):
    """An observation whose law is known exactly."""

    def law_of(self, images: Float[Tensor, "M C H W"]) -> Law:
        """Bind the law to these images; work that needs only them is done once."""


@runtime_checkable
class ObservationPaid(Observation, Protocol):
    """An observation that is paid for; `sample` raises SpentError when nothing is left."""

    @property
    def paid(self) -> int:
        """The number of observations paid so far."""


@runtime_checkable
class ObservationHead(Observation, Protocol):
    """An observation that a known head turns into logits, disturbed by a known defence."""

    def answer(self, observed: Float[Tensor, "B F"]) -> Float[Tensor, "B K"]:
        """Compute the head's logits of K classes, with a gradient."""

    def disturb(
        self, features: Float[Tensor, "B F"], generator: torch.Generator
    ) -> Float[Tensor, "B F"]:
        """Apply the defence to features, with a gradient: what a device would send."""


@runtime_checkable
class ObservationArchitecture(Observation, Protocol):
    """An observation whose encoder can be built, but not with its parameters."""

    def fresh_encoder(self, generator: torch.Generator) -> nn.Module:
        """Build an encoder of the same layers, (B, C, H, W) to (B, F), parameters redrawn."""


@runtime_checkable
class ObservationUpdate(Observation, Protocol):
    """Uploads of clients that trained on `batch` images each, one row per image.

    Rows i to i + batch - 1 are equal: the upload of the client that holds these images. The last
    client may hold fewer.
    """

    @property
    def batch(self) -> int:
        """The number of images behind one upload."""

    @property
    def noisy(self) -> int:
        """The number of values of an image that noise at the cut is added to, or 0."""

    @property
    def masked(self) -> int:
        """The number of values of an image that a mask at the cut may drop, or 0."""

    def update(
        self,
        images: Float[Tensor, "G b C H W"],
        labels: Int[Tensor, "G b"],
        generator: torch.Generator,
        noise: Float[Tensor, "G b F"] | None = None,
        mask: Float[Tensor, "G b F"] | None = None,
    ) -> Float[Tensor, "G P"]:
        """Compute the mean upload of G clients that hold these images, with a gradient.

        Called with positional arguments. The generator draws noise at the cut (in units of its
        standard deviation) and mask (what is kept, in [0, 1]) where they are not given.
        """

    def labels(self, observed: Float[Tensor, "G P"], batch: int) -> Int[Tensor, "G b"]:
        """Read off each upload the labels of its images that explain it best, ascending."""


@runtime_checkable
class ObservationFirstLayer(ObservationUpdate, Protocol):
    """Uploads whose first layer sees the pixels themselves."""

    def first_layer(
        self, observed: Float[Tensor, " P"]
    ) -> tuple[Float[Tensor, "U N"], Float[Tensor, " U"]]:
        """Pick the first layer's part of one upload: of W (units, pixels) and of b, in any unit."""


def find_law(observation: Observation, images: Float[Tensor, "M C H W"]) -> Law:
    """Bind the law of an observation to the images that may be behind it.

    Args:
        observation: What is seen; it must grant `LOG_PROB` or `NOISELESS`.
        images: (M, C, H, W) in [0, 1].

    Returns:
        A function from observations (Q, F) to log p(observed_q | image_j), (Q, M) in nats. Without
        noise it is 0 where the observation is that of the image, minus infinity elsewhere.

    Raises:
        ValueError: The observation grants neither.
    """
    if LOG_PROB in observation.grants and isinstance(observation, ObservationLaw):
        return observation.law_of(images)
    if NOISELESS not in observation.grants:
        raise ValueError(f"{observation.name!r} does not grant {LOG_PROB!r}: its law is not known")
    exact = observation.sample(images, torch.Generator())  # noiseless: draws nothing
    return lambda observed: exact_match_log_prob(observed, exact)


def exact_match_log_prob(
    observed: Float[Tensor, "Q F"], exact: Float[Tensor, "M F"]
) -> Float[Tensor, "Q M"]:
    """Return 0 where an observed row equals an image's observation, minus infinity elsewhere."""
    _, group = torch.unique(torch.cat([observed, exact]), dim=0, return_inverse=True)
    observed_group, exact_group = group[: len(observed), None], group[None, len(observed) :]
    return torch.eq(observed_group, exact_group).double().log()
