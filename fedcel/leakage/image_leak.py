"""Leak of one image by its messages: `measure_leakage` for a single image, fast."""

from math import e, log2
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fedcel.leakage.exact_bits import noise_half_width, score_messages
from fedcel.leakage.messages import disturb_features
from fedcel.metrics import UNSEEN_EVENTS
from fedcel.torch_state import usual_torch_state

MIN_DRAWS = 2  # one would give no error
MAX_TERMS = 6_000_000  # likelihoods of a feature, where messages have no common mean: 50 ms


class ImageLeak(NamedTuple):
    """Leak of one image to the best possible attacker, in bits.

    Attributes:
        information: About its place among the M images; negative where messages mislead on average.
        beyond_label: About its place among those of its class.
        information_half_width: Of a 95 % interval over the noise drawn.
        beyond_half_width: Of a 95 % interval over the noise drawn.
        cap: log2 M.
        cap_beyond_label: log2 of the images of its class, itself included.
    """

    information: float
    beyond_label: float
    information_half_width: float
    beyond_half_width: float
    cap: float
    cap_beyond_label: float


@usual_torch_state()
def image_leak(
    features: Float[Tensor, "M D"],
    labels: Int[Tensor, " M"],
    sender: int,
    *,
    noise: Float[Tensor, "*M D"],
    generator: torch.Generator,
    dropout: float = 0.0,
    messages: int = 1,
    draws: int = 256,
) -> ImageLeak:
    """Measure what several messages of one image tell of it.

    The number that `measure_leakage` averages over all images, and more exact than there, as its
    draws are all of this image. Several messages in Gaussian noise tell what one tells whose noise
    is smaller by the root of their number: their mean says it all. Of others the likelihoods are
    multiplied.

    Example:
        >>> leak = image_leak(z, y, 7, noise=torch.full((64,), 0.3), generator=generator)
        >>> leak.beyond_label

    Args:
        features: Of the M images among which it is, (M, D).
        labels: Their classes, (M,).
        sender: Position of the image that sends.
        noise: Standard deviation of each feature's noise, (D,), or of each image's, (M, D).
        generator: Draws the noise.
        dropout: Chance that a feature is sent as 0, in [0, 1).
        messages: How many the attacker sees, each with fresh noise.
        draws: How often they are drawn, 2 or more; under dropout or noise of each image less often
            where it would take longer than a blink, and the half-widths are larger.

    Returns:
        Bits and how far chance may have moved them.

    Raises:
        ValueError: A number is out of range.
    """
    count = len(features)
    if not 0 <= sender < count:
        raise ValueError(f"sender is {sender}, must be from 0 to {count - 1}")
    if messages < 1 or draws < MIN_DRAWS:
        raise ValueError(
            f"messages is {messages}, draws is {draws}; must be at least 1 and {MIN_DRAWS}"
        )
    table, sigma = features.detach().double(), noise.double()
    has_mean = noise.dim() == 1 and not dropout  # which tells what all messages tell
    if has_mean:
        sigma, messages = sigma / messages**0.5, 1
    channel = disturb_features(table, sigma, dropout)
    if not channel.is_random:
        draws = 1
    elif not has_mean:
        draws = max(MIN_DRAWS, min(draws, MAX_TERMS // (messages * table.numel())))
    observed = channel.sample(torch.full((draws * messages,), sender), generator)
    log_prob = channel.law(observed).view(draws, messages, -1).sum(1)
    senders = torch.full((draws,), sender)
    _, information, beyond = score_messages(log_prob, senders, labels, 1)[0]
    alike = int(labels.eq(labels[sender]).sum())
    widths = [
        noise_half_width(
            scores.mean()[None],
            scores.square().mean()[None],
            draws,
            low=-log2(rivals),
            high=0.0,
            reach=reach_bits(rivals, draws),
        )
        for scores, rivals in ((information, count), (beyond, alike))
    ]
    return ImageLeak(
        information=float(information.mean()) + log2(count),
        beyond_label=float(beyond.mean()) + log2(alike),
        information_half_width=widths[0],
        beyond_half_width=widths[1],
        cap=log2(count),
        cap_beyond_label=log2(alike),
    )


def reach_bits(rivals: int, draws: int) -> float:
    """Return what an event that no message of one image showed costs at most, whatever the law.

    Its posterior is below e with chance rivals e at most, so that an event of chance p costs
    log2(rivals / p) + log2(e) bits on average; p is that of one that is missing in so many draws.
    """
    return log2(max(1.0, rivals * draws / UNSEEN_EVENTS) * e) if rivals > 1 else 0.0
