"""Smashed data: the message of a split network, as an observation whose law is known exactly."""

from dataclasses import dataclass, field, replace
from math import log

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn
from torch.nn.functional import softplus

from fedcel.leakage.gaussian_noise import NoiseFunction
from fedcel.leakage.kept_features import KeptFeatures
from fedcel.leakage.observation import (
    ARCHITECTURE,
    FREE_QUERIES,
    HEAD,
    LOG_PROB,
    MEAN,
    NOISELESS,
    Law,
)
from fedcel.leakage.population_bound import GaussianMessages
from fedcel.nets import Cut, SplitNet, copy_module, initialise_parameters
from fedcel.short_repr import show_shapes

EM_STEPS = 10
"""Steps of expectation and maximisation; values have nearly settled by then."""
MIN_MESSAGES = 1e-6  # that came through: fewer would divide by nothing


@show_shapes
@dataclass(frozen=True)
class SmashedData:
    """The message z~ of a split network, its encoder and the law of the cut known.

    Args:
        net: The split network.
        name: The kind of observation.
        fits_head: Whether the head takes this message; it does not where the messages of several
            encoders are in a row.
        has_layers: Whether the encoder is known as layers that can be redrawn; a program of
            `torch.export` is not.
    """

    net: SplitNet
    name: str = "smashed-data"
    fits_head: bool = True
    has_layers: bool = True
    feature_store: KeptFeatures = field(
        init=False, repr=False, compare=False, default_factory=KeptFeatures
    )

    @property
    def grants(self) -> frozenset[str]:
        """Knowledge of an attacker: no likelihood without noise, no head that cannot read z~."""
        law = LOG_PROB if self.net.cut.is_random else NOISELESS
        head = {HEAD} if self.fits_head else set()
        layers = {ARCHITECTURE} if self.has_layers else set()
        return frozenset({MEAN, FREE_QUERIES, law} | head | layers)

    def mean(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B F"]:
        """Compute E[z~] of each image, with a gradient; see `ObservationMean`."""
        return self.net.encode(images) * (1 - self.net.cut.dropout)

    def misfit(
        self, images: Float[Tensor, "B C H W"], observed: Float[Tensor, "B F"]
    ) -> Float[Tensor, " B"]:
        """Compute mean (z~ - z)^2 over values, under dropout that of the cut's mixture.

        Where the noise is scaled, mean ((z~ - z) / s)^2 + 2 sigma^2 log s: -2 sigma^2 log p.
        """
        z = self.net.encode(images)
        cut = self.net.cut
        if cut.dropout > 0:
            return cut.dropout_misfit(z, observed)
        scale = self.net.scale_noise(z)
        if scale is None:
            return (z - observed).square().mean(1)
        gap = ((z - observed) / scale).square()
        return (gap + 2 * cut.sigma**2 * scale.log()).mean(1)

    def pooled(self, parts: Float[Tensor, "B m F"]) -> Float[Tensor, "B F"]:
        """Estimate E[z~] from m messages: by their mean, under dropout by the cut's mixture."""
        cut = self.net.cut
        if cut.dropout > 0:
            return most_likely_features(parts, cut) * (1 - cut.dropout)
        return parts.mean(1)

    def answer(self, observed: Float[Tensor, "B F"]) -> Float[Tensor, "B K"]:
        """Compute the head's logits of messages, with a gradient."""
        return self.net.answer(observed)

    def disturb(
        self, features: Float[Tensor, "B F"], generator: torch.Generator
    ) -> Float[Tensor, "B F"]:
        """Send features through the cut's own noise and mask, with a gradient."""
        return self.net.add_noise(features, generator)

    def fresh_encoder(self, generator: torch.Generator) -> nn.Module:
        """Copy the encoder, and redraw every layer that can be reset."""
        encoder = copy_module(self.net.encoder)
        seed = int(torch.randint(2**31, (), generator=generator))
        with torch.random.fork_rng(devices=[]):  # layers draw from the global state
            torch.manual_seed(seed)
            for layer in encoder.modules():
                reset = getattr(layer, "reset_parameters", None)
                if callable(reset):
                    reset()
        initialise_parameters(encoder, generator)
        return encoder

    def to(self, device: torch.device) -> "SmashedData":
        """Copy the observation, net included, for images on another device."""
        return replace(self, net=copy_module(self.net).to(device))

    def encode(self, images: Shaped[Tensor, "B C H W"]) -> Float[Tensor, "B F"]:
        """Compute the features z in batches, without a gradient; of each image once."""
        return self.feature_store.encode(images, self.net, self.net.encode_all)

    def describe_features(
        self, z: Float[Tensor, "M F"], labels: Int[Tensor, " M"]
    ) -> GaussianMessages | None:
        """Compute the Gaussian law of messages of features; None where the cut adds no noise.

        Under dropout the law is that of messages without it, which tell no less: whoever has them
        can drop values, too.
        """
        sigma = self.net.cut.sigma
        if sigma == 0:
            return None
        scale = self.net.scale_noise(z)
        deviation = z.new_ones(1, z.shape[1]) if scale is None else scale.detach()
        return GaussianMessages(z, sigma * deviation, labels)

    def describe_noise(self) -> float | NoiseFunction | None:
        """Standard deviation of the cut's Gaussian noise; None of another law, or without noise."""
        sigma, scale = self.net.cut.sigma, self.net.noise_scale
        if sigma == 0 or self.net.cut.dropout > 0:
            return None
        if scale is None:
            return sigma

        def deviate(z: Float[Tensor, "B D"]) -> Float[Tensor, "B D"]:
            deviations: Tensor = sigma * scale(z)
            return deviations

        return deviate

    def sample(
        self, images: Float[Tensor, "B C H W"], generator: torch.Generator
    ) -> Float[Tensor, "B F"]:
        """Send each image once: z~ with fresh noise, without a gradient."""
        return self.send(self.encode(images), generator)

    @torch.no_grad()  # a noise's learned scale has parameters
    def send(
        self, features: Float[Tensor, "B F"], generator: torch.Generator
    ) -> Float[Tensor, "B F"]:
        """Send features as `sample` sends those of images."""
        return self.net.add_noise(features, generator)

    @torch.no_grad()
    def law_of(self, images: Float[Tensor, "M C H W"]) -> Law:
        """Bind the cut's log p(z~_q | z_j), in float64, to images, which are encoded once."""
        z = self.encode(images)
        scale = self.net.scale_noise(z)
        return lambda observed: self.net.cut.log_prob(observed, z, scale)


def most_likely_features(parts: Float[Tensor, "B m D"], cut: Cut) -> Float[Tensor, "B D"]:
    """Return the z of largest likelihood of m messages each, value by value.

    Without a prior: one would shrink every value, and a search that averages over many values takes
    that for the image. Expectation and maximisation (Dempster, Laird and Rubin, 1977, section 4.3)
    from the messages' mean and from the one farthest from 0; the better end stays. At sigma 0 what
    came through is z, and 0 where nothing did.
    """
    if cut.sigma == 0:
        return parts.sum(1) / parts.ne(0).sum(1).clamp_min(1)
    odds = log((1 - cut.dropout) / cut.dropout)
    scaled = parts / cut.sigma**2

    def log_odds(z: Float[Tensor, "B D"]) -> Float[Tensor, "B m D"]:
        """Return the log-odds that z came through in each message."""
        return odds + z[:, None] * scaled - (z.square() / (2 * cut.sigma**2))[:, None]

    def climb(z: Float[Tensor, "B D"]) -> Float[Tensor, "B D"]:
        for _ in range(EM_STEPS):
            chance = torch.sigmoid(log_odds(z))
            z = (chance * parts).sum(1) / chance.sum(1).clamp_min(MIN_MESSAGES)
        return z

    farthest = parts.gather(1, parts.abs().argmax(1, keepdim=True)).squeeze(1)
    from_mean, from_farthest = climb(parts.mean(1) / (1 - cut.dropout)), climb(farthest)
    better = softplus(log_odds(from_mean)).sum(1) >= softplus(log_odds(from_farthest)).sum(1)
    return torch.where(better, from_mean, from_farthest)
