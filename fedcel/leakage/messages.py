"""Messages by a known law: of given features and noise, by a user's own law, of an observation."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from fedcel.leakage.certificate import span_coordinates
from fedcel.leakage.observation import NOISELESS, Law, Observation, find_law
from fedcel.leakage.smashed_data import SmashedData
from fedcel.nets import Cut, apply_noise
from fedcel.tensors import to_tensor

LogProb = Callable[[Tensor, Tensor], object]
"""(messages (Q, F), features (M, D)) to log p(message_q | features_j), (Q, M) in nats."""
Sampler = Callable[[Tensor, torch.Generator], object]
"""(features (Q, D), generator) to one message of each, (Q, F)."""

MAX_ROUNDING = 1e-6  # nats that a fast product may be wrong by
CERTAIN_NATS = 60.0  # features that explain a message worse by this add nothing to any sum
VALUES_AT_ONCE = 2**22  # differences in memory, where pairs are computed one by one
UNIT_ROUNDING = 1e-15  # of float64, with a margin for sums


@dataclass(frozen=True)
class Messages:
    """Sampler of messages of M images, and the likelihood of each image given a message.

    Attributes:
        sample: Draws a message of each of the images at these positions.
        law: log p(message | image) of all pairs.
        is_random: Whether the same image gives different messages.
    """

    sample: Callable[[Int[Tensor, " Q"], torch.Generator], Float[Tensor, "Q F"]]
    law: Law
    is_random: bool = True


def observe_images(observation: Observation, images: Float[Tensor, "M C H W"]) -> Messages:
    """Return the messages of images that an attacker observes; ValueError without a likelihood.

    Images behind smashed data are encoded once, however often they are sent.
    """
    is_random = NOISELESS not in observation.grants
    if isinstance(observation, SmashedData):
        z, send, net = observation.encode(images), observation.send, observation.net
        is_equal = net.cut.sigma > 0 and not net.cut.dropout and not net.noise_scale
        if is_equal and z.shape[1] > len(z):
            return _add_noise(z.double() / net.cut.sigma)
        law = find_law(observation, images)
        return Messages(lambda senders, generator: send(z[senders], generator), law, is_random)
    law = find_law(observation, images)
    return Messages(
        lambda senders, generator: observation.sample(images[senders], generator), law, is_random
    )


def disturb_features(
    features: Float[Tensor, "M D"], noise: Float[Tensor, "*M D"], dropout: float = 0.0
) -> Messages:
    """Make messages by dropping values and adding Gaussian noise, of features in float64.

    Values are independent given the features: each is kept with chance 1 - dropout, then noise of
    its own standard deviation is added, above 0 for all values or 0 for all. Where it differs from
    image to image, (M, D), it is above 0, and nothing is dropped.
    """
    if noise.dim() == 2:
        return _disturb_by(Cut(1.0), features, noise)
    if not noise.any():
        return _disturb_by(Cut(0.0, dropout), features) if dropout else _send_exactly(features)
    scaled = features / noise
    return _disturb_by(Cut(1.0, dropout), scaled) if dropout else _add_noise(scaled)


def _disturb_by(
    cut: Cut, features: Float[Tensor, "M D"], scale: Float[Tensor, "M D"] | None = None
) -> Messages:
    """Return messages by the noise and mask of a cut, drawn on the processor as everywhere."""

    def sample(senders: Int[Tensor, " Q"], generator: torch.Generator) -> Float[Tensor, "Q D"]:
        sent = features[senders]
        shape = tuple(sent.shape)
        draws = cut.draw_mask(shape, generator), cut.draw_noise(shape, generator, torch.float64)
        mask, noise = (None if draw is None else draw.to(sent.device) for draw in draws)
        return apply_noise(sent, mask, noise, None if scale is None else scale[senders])

    return Messages(sample, lambda observed: cut.log_prob(observed, features, scale))


def _add_noise(features: Float[Tensor, "M D"]) -> Messages:
    """Return messages z + xi, xi ~ N(0, I)."""
    coordinates = span_coordinates(features)
    centred = coordinates - coordinates.mean(0)
    distinct, group = torch.unique(centred, dim=0, return_inverse=True)
    has_duplicates = len(distinct) < len(centred)

    def law(observed: Float[Tensor, "Q D"]) -> Float[Tensor, "Q M"]:
        # Equal features are computed once, so that rounding does not tell them apart.
        log_prob = gaussian_log_prob(observed, distinct if has_duplicates else centred)
        return log_prob[:, group] if has_duplicates else log_prob

    return replace(_disturb_by(Cut(1.0), centred), law=law)


def gaussian_log_prob(
    observed: Float[Tensor, "Q D"], features: Float[Tensor, "M D"]
) -> Float[Tensor, "Q M"]:
    """Return -|z~_q - z_j|^2 / 2, of features that are centred and in units of the noise.

    By |a|^2 - 2ab + |b|^2, one product of matrices. Where that may be wrong by `MAX_ROUNDING`,
    under noise that is very small beside the features, pairs that matter are computed from
    differences.
    """
    lengths, observed_lengths = features.norm(dim=1), observed.norm(dim=1, keepdim=True)
    log_prob = torch.addmm(lengths.square() / -2, observed, features.T)
    log_prob -= observed_lengths.square() / 2
    largest = float(lengths.max() + observed_lengths.max())
    rounding = UNIT_ROUNDING * largest**2
    if rounding > MAX_ROUNDING:
        nearest = log_prob.amax(1, keepdim=True)
        _refine_log_prob(log_prob, observed, features, log_prob > nearest - CERTAIN_NATS - rounding)
    return log_prob


def _refine_log_prob(
    log_prob: Float[Tensor, "Q M"],
    observed: Float[Tensor, "Q D"],
    features: Float[Tensor, "M D"],
    chosen: Bool[Tensor, "Q M"],
) -> None:
    """Compute the chosen pairs again from differences, in place."""
    pairs = torch.split(chosen.nonzero(), max(1, VALUES_AT_ONCE // features.shape[1]))
    for rows, columns in (piece.T for piece in pairs):
        gap = observed[rows] - features[columns]
        log_prob[rows, columns] = gap.square().sum(1) / -2


def _send_exactly(features: Float[Tensor, "M D"]) -> Messages:
    """Return messages without noise: which of the distinct features it is, as one number."""
    group = torch.unique(features, dim=0, return_inverse=True)[1].to(features.dtype)

    def law(observed: Float[Tensor, "Q 1"]) -> Float[Tensor, "Q M"]:
        return torch.eq(observed, group).to(features.dtype).log()

    return Messages(lambda senders, _: group[senders, None], law, is_random=False)


def send_by_law(features: Float[Tensor, "M D"], log_prob: LogProb, sampler: Sampler) -> Messages:
    """Make messages by a user's own law and its sampler; ValueError where they do not fit."""

    def sample(senders: Int[Tensor, " Q"], generator: torch.Generator) -> Float[Tensor, "Q F"]:
        observed = to_tensor(sampler(features[senders], generator), "messages of the sampler")
        if observed.dim() != 2 or len(observed) != len(senders):
            raise ValueError(
                f"the sampler gives {tuple(observed.shape)} for {len(senders)} features, must be "
                f"({len(senders)}, F): one message each"
            )
        return observed

    def law(observed: Float[Tensor, "Q F"]) -> Float[Tensor, "Q M"]:
        # A copy: a law that works in place would change the features of all that follow.
        nats = to_tensor(log_prob(observed, features.clone()), "values of log_prob")
        shape = len(observed), len(features)
        if tuple(nats.shape) != shape or nats.isnan().any() or nats.isposinf().any():
            raise ValueError(
                f"log_prob gives {tuple(nats.shape)} of {nats.dtype}, must be {shape}, numbers or "
                "minus infinity: log p(message_q | features_j)"
            )
        if nats.isneginf().all(1).any():
            raise ValueError(
                "log_prob gives minus infinity for a message under all features; it must be the "
                "law of what the sampler draws"
            )
        return nats.double()

    return Messages(sample, law)
