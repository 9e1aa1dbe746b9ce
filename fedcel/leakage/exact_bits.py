"""The optimal identification attacker: the noise law is known, so Bayes' rule is the attack."""

from collections.abc import Callable
from functools import partial
from math import ceil, log, log2
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fedcel.errors import NetError
from fedcel.leakage.identification import identification
from fedcel.leakage.messages import Messages, observe_images
from fedcel.leakage.observation import Observation, find_law
from fedcel.metrics import mean_half_width, sample_half_width
from fedcel.progress import tell_progress
from fedcel.short_repr import show_shapes
from fedcel.tensors import count_alike

MessageScore = Callable[[Float[Tensor, "Q M"], Int[Tensor, " Q"]], Float[Tensor, "2 3 Q"]]
"""Three scores of messages, by log p(message | image) of all pairs and who sent each, and what
their squares are expected to be, given the messages."""

PAIRS_AT_ONCE = 16_000_000  # entries of log p(observed | image) in memory
MIN_DRAWS = 8  # of noise, for each image
MIN_MESSAGES = 3200  # with fewer, Monte Carlo error can push bits above the certificate
LEAST_LOG = -750.0  # nats, whose exponential is 0


@show_shapes
class OptimalLeak(NamedTuple):
    """Leak of one observation to the best possible attacker, in bits and as a rate.

    Half widths of 95 % intervals: `identification_half_width` and `beyond_label_half_width` over
    the targets, the candidates held fixed; those with `noise` in their names over the noise drawn,
    for these images.
    """

    identification: float
    """Share of cases in which the likeliest of `identification_candidates` images is right."""
    information_bits: float
    """I(image; observation) for an image drawn uniformly from the M candidates."""
    bits_beyond_label: float
    """I(image; observation | label): what leaks about the image and not about its class."""
    image_count: int
    """M, the number of images."""
    cap_bits: float
    """log2 M: all of it."""
    cap_beyond_label: float
    """Mean over images of log2(images of the same class): all that is beyond the label."""
    identification_candidates: int
    identification_half_width: float
    beyond_label_half_width: float
    identification_noise_half_width: float
    information_noise_half_width: float
    beyond_noise_half_width: float
    identified: Float[Tensor, " M"]
    """Chance that each image is identified, mean over noise draws; see `identification`."""
    information: Float[Tensor, " M"]
    """Bits of each image, mean over noise draws."""
    beyond: Float[Tensor, " M"]
    """Bits beyond the label of each image, mean over noise draws."""


def optimal_leak(
    observation: Observation,
    images: Float[Tensor, "M C H W"],
    labels: Int[Tensor, " M"],
    generator: torch.Generator,
    *,
    identification_candidates: int = 100,
    draws: int | None = None,
) -> OptimalLeak:
    """Measure what the best possible attacker learns from one message about these M images.

    The attacker picks argmax_j p(observed | image_j). Information is the mean over images i of
    log p(o_i | x_i) - log (1/M) sum_j p(o_i | x_j), with j over all images, or over those of the
    same class. Exact but for Monte Carlo over noise draws. A noiseless observation tells images
    apart unless they give equal vectors: no draws are needed.

    Args:
        observation: What is seen of an image, and its law.
        images: (M, C, H, W) in [0, 1].
        labels: (M,).
        generator: Draws the noise.
        identification_candidates: Images among which the right one is picked, 1 or more.
        draws: Noise draws of each image, 2 or more; None: 3200 of all images together, 8 or more of
            each. Without noise one is enough.

    Returns:
        Bits, bits beyond the label, and how often the right image is picked.

    Raises:
        ValueError: The observation grants no likelihood, or a single draw is asked for of what is
            random.
        NetError: A likelihood is not finite.

    References:
        Cover and Thomas, Elements of Information Theory, 2006, equation 2.28, for a uniform input.
    """
    messages = observe_images(observation, images)
    return measure_bits(
        messages, labels, generator, draws=draws, candidates=identification_candidates
    )


def measure_bits(
    messages: Messages,
    labels: Int[Tensor, " M"],
    generator: torch.Generator,
    *,
    draws: int | None,
    candidates: int,
    least_draws: int = MIN_DRAWS,
    pairs_at_once: int = PAIRS_AT_ONCE,
) -> OptimalLeak:
    """Measure what messages of a known law tell; see `optimal_leak`."""
    count = len(labels)
    draws = count_draws(messages, count, draws, least_draws)
    score = partial(score_messages, labels=labels, candidates=candidates)
    means, squares = average_messages(
        messages, score, generator, count=count, draws=draws, pairs_at_once=pairs_at_once
    )
    cap_all = torch.full((count,), log2(count), dtype=torch.float64)
    cap_beyond = count_alike(labels).double().log2()
    identified, information, beyond = means[0], means[1] + cap_all, means[2] + cap_beyond
    return OptimalLeak(
        identification=float(identified.mean()),
        information_bits=float(information.mean()),
        bits_beyond_label=float(beyond.mean()),
        image_count=count,
        cap_bits=log2(count),
        cap_beyond_label=float(cap_beyond.mean()),
        identification_candidates=min(candidates, count),
        identification_half_width=sample_half_width(identified, low=0.0, high=1.0),
        beyond_label_half_width=sample_half_width(beyond, low=0.0, high=float(cap_beyond.max())),
        identification_noise_half_width=noise_half_width(means[0], squares[0], draws),
        information_noise_half_width=bits_half_width(means[1], squares[1], draws, cap_all),
        beyond_noise_half_width=bits_half_width(means[2], squares[2], draws, cap_beyond),
        identified=identified,
        information=information,
        beyond=beyond,
    )


def best_guesses(
    observation: Observation,
    images: Float[Tensor, "M C H W"],
    senders: Int[Tensor, " Q"],
    generator: torch.Generator,
    *,
    count: int = 3,
) -> tuple[Int[Tensor, "Q G"], Float[Tensor, "Q G"]]:
    """Draw one message of each sender and find the images that most probably sent it.

    Args:
        observation: What is seen of an image; its law must be known.
        images: The candidates, (M, C, H, W) in [0, 1].
        senders: Positions of the images that send.
        generator: Draws the noise.
        count: Guesses for each message; M where that is less.

    Returns:
        Positions of the likeliest images, the likeliest first, and their posterior probabilities by
        Bayes' rule, for an image drawn uniformly from the M.

    Raises:
        ValueError: The observation grants no likelihood.
    """
    law = find_law(observation, images)
    observed = observation.sample(images[senders], generator)
    posterior = law(observed).double().softmax(1).cpu()
    probabilities, positions = posterior.topk(min(count, len(images)))
    return positions, probabilities


def average_messages(
    messages: Messages,
    score: MessageScore,
    generator: torch.Generator,
    *,
    count: int,
    draws: int,
    pairs_at_once: int = PAIRS_AT_ONCE,
) -> tuple[Float[Tensor, "3 M"], Float[Tensor, "3 M"]]:
    """Average three scores of `draws` messages of each of M images, and their squares.

    The squares are those of `raise_squares`. NetError where a message is not finite.
    """
    senders = torch.arange(count).repeat(draws)
    means, squares, expected = torch.zeros(3, 3, count, dtype=torch.float64)
    finished = 0
    for senders_chunk in torch.split(senders, max(1, pairs_at_once // count)):
        observed = messages.sample(senders_chunk, generator)
        if not observed.isfinite().all():
            raise NetError("a message holds NaN or infinity; check the images and the encoder")
        scores, expected_squares = score(messages.law(observed), senders_chunk).cpu()
        means.index_add_(1, senders_chunk, scores)
        squares.index_add_(1, senders_chunk, scores.square())
        expected.index_add_(1, senders_chunk, expected_squares)
        finished += len(senders_chunk)
        tell_progress(finished, len(senders))
    # Divided at the end: shares of what is sure sum to 1.
    return means / draws, raise_squares(squares / draws, expected / draws)


def raise_squares(
    squares: Float[Tensor, "*S M"], expected: Float[Tensor, "*S M"]
) -> Float[Tensor, "*S M"]:
    """Add to mean squares what the posterior expects more on average over images.

    What rarely misleads is expected before it occurs: the messages that it would look like, those
    of other images, are as many as it costs bits.
    """
    return squares + (expected - squares).mean(-1, keepdim=True).clamp_min(0)


def count_draws(
    messages: Messages, count: int, draws: int | None = None, least: int = MIN_DRAWS
) -> int:
    """Return the noise draws of each of M images: those asked for, or `MIN_MESSAGES` together."""
    if not messages.is_random:
        return 1
    if draws is None:
        return max(least, ceil(MIN_MESSAGES / count))
    if draws < 2:
        raise ValueError(f"draws is {draws}, must be at least 2 for an error; leave it out")
    return draws


def bits_half_width(
    means: Float[Tensor, " M"],
    squares: Float[Tensor, " M"],
    draws: int,
    caps: Float[Tensor, " M"],
) -> float:
    """Return the half width of bits over the noise, from logs of the own image's posterior.

    By the squares of `raise_squares` what no message of any image showed costs no more than
    `caps`, all bits there are of each image.
    """
    low, reach = -float(caps.mean()), float(caps.max())
    return noise_half_width(means, squares, draws, low=low, high=0.0, reach=reach)


def noise_half_width(
    means: Float[Tensor, " M"],
    squares: Float[Tensor, " M"],
    draws: int,
    *,
    low: float = 0.0,
    high: float = 1.0,
    reach: float = 1.0,
) -> float:
    """Return the half width of a mean over M fixed images, each the mean of its noise draws.

    One draw tells all, and then it is 0. The mean is from `low` to `high`, and a rare message
    changes it by `reach`.

    References:
        Satterthwaite, Biometrics 1946: degrees of freedom of a sum of unequal variances.
    """
    if draws == 1:
        return 0.0
    # Rounding leaves a little below 0 where all draws of an image are the same.
    variances = (squares - means.square()).clamp_min(0) * draws / (draws - 1)
    total, count = float(variances.sum()), len(means)
    shares = variances / total if total else torch.ones(1)
    return mean_half_width(
        float(means.mean()),
        total / draws / count**2,
        (draws + 1) / float(shares.square().sum()),
        low=low,
        high=high,
        rare=reach / (draws * count),
    )


def score_messages(
    log_prob: Float[Tensor, "Q M"],
    senders: Int[Tensor, " Q"],
    labels: Int[Tensor, " M"],
    candidates: int,
) -> Float[Tensor, "2 3 Q"]:
    """Return chance of identification, log2 posterior of the own image, and within its class.

    Beside them their squares, of the posterior as expected by itself: see `expect_square`.
    NetError where an image could not have sent its own message: it was encoded to other bits.
    """
    senders, labels = senders.to(log_prob.device), labels.to(log_prob.device)
    same_class = labels[senders, None] == labels
    own_log_prob = log_prob.gather(1, senders[:, None])[:, 0]
    if not own_log_prob.isfinite().all():
        raise NetError(
            "a message is impossible for the image that sent it: the encoder gives other bits in "
            "batches of other sizes; add noise to the features, or take more candidates"
        )
    hits = identification(log_prob, senders, candidates)
    peaks = log_prob.amax(1, keepdim=True)
    shifted = (log_prob - peaks).clamp_min_(LEAST_LOG)
    shares = shifted.exp()
    sums = shares.sum(1, keepdim=True)
    shares.div_(sums)
    totals = peaks + sums.log()
    class_totals = log_prob.masked_fill(~same_class, -torch.inf).logsumexp(1, keepdim=True)
    least_share = torch.finfo(log_prob.dtype).tiny  # of a class: below it, no square is expected
    class_shares = (class_totals - totals).exp()[:, 0].clamp_min(least_share)
    nats = shifted.sub_(totals - peaks)
    squares = expect_square(shares, nats)
    class_squares = expect_square(shares.mul_(same_class), nats.sub_(class_totals - totals))
    bits = (own_log_prob - torch.cat([totals, class_totals], 1).T) / log(2)
    expected = [hits.square(), squares, class_squares / class_shares]
    return torch.stack([torch.stack([hits, *bits]), torch.stack(expected)])


def expect_square(shares: Float[Tensor, "Q M"], nats: Float[Tensor, "Q M"]) -> Float[Tensor, " Q"]:
    """Return the mean of log2(posterior)^2 over who may have sent each message, by the posterior.

    Over messages of all images its mean is that of the own image's square.
    """
    return torch.einsum("qm,qm->q", shares * nats, nats) / log(2) ** 2
