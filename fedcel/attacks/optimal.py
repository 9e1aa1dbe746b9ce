"""The optimal identification attacker: the noise law is known, so Bayes' rule is the attack."""

from collections.abc import Callable
from math import log, log2
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from fedcel.attacks.identification import identification
from fedcel.attacks.observation import LOG_PROB, NOISELESS, Observation, ObservationLikelihood
from fedcel.errors import NetError

BLOCK = 16_000_000  # entries of log p(observed | image) held at once
RESAMPLES = 1000  # of the bootstrap


class OptimalLeak(NamedTuple):
    """What one observation tells the best possible attacker, in bits and as a rate.

    Half widths are of 95 % bootstrap intervals over the targets, the candidates held fixed.
    """

    identification: float
    """How often the most likely of `identification_candidates` images is the right one."""
    information_bits: float
    """I(image; observation) for an image drawn uniformly from the M candidates."""
    bits_beyond_label: float
    """I(image; observation | label): what leaks about the image and not about its class."""
    candidates: int
    """M, the number of images."""
    cap_bits: float
    """log2 M: all of it."""
    cap_beyond_label: float
    """Mean over images of log2(images of the same class): all that is beyond the label."""
    identification_candidates: int
    identification_half_width: float
    beyond_label_half_width: float
    identified: Float[Tensor, " M"]
    """Of each image, mean over noise draws; their mean is `identification`."""
    beyond: Float[Tensor, " M"]
    """Bits beyond the label of each image, mean over noise draws."""


def optimal(
    observation: Observation,
    images: Float[Tensor, "M C H W"],
    labels: Int[Tensor, " M"],
    generator: torch.Generator,
    candidates: int = 100,
    draws: int = 8,
) -> OptimalLeak:
    """Return the exact leak about these M images, Monte Carlo over `draws` noise draws each.

    The attacker picks argmax_j p(observed | image_j). Information is the mean over images i of
    log p(o_i | x_i) - log (1/M) sum_j p(o_i | x_j), with j over all images, or over those of the
    same class (Cover and Thomas, 2006, equation 2.28, for a uniform input). A noiseless
    observation tells images apart unless they give equal vectors: no draws are needed.
    ValueError when the observation grants no likelihood; NetError when it is not finite.
    """
    likelihood, draws = law(observation), 1 if NOISELESS in observation.grants else draws
    count = len(images)
    size = (labels[:, None] == labels).sum(1).double()
    sums = torch.zeros(3, count, dtype=torch.float64)
    for own in torch.split(torch.arange(count).repeat(draws), max(1, BLOCK // count)):
        observed = observation.sample(images[own], generator)
        if not observed.isfinite().all():
            raise NetError("the observation holds NaN or infinity; lower local.rate")
        same = labels[own, None] == labels
        found = scores(likelihood(observed, images), own, same, candidates)
        sums.index_add_(1, own, found / draws)
    rate, information, beyond = sums
    information, beyond = information + log2(count), beyond + size.log2()
    caps = log2(count), float(size.log2().mean())
    one, two, three = (float(values.mean()) for values in (rate, information, beyond))
    return OptimalLeak(
        one,
        two,
        three,
        count,
        *caps,
        min(candidates, count),
        half_width(rate, generator),
        half_width(beyond, generator),
        identified=rate,
        beyond=beyond,
    )


Law = Callable[[Float[Tensor, "Q F"], Float[Tensor, "M C H W"]], Float[Tensor, "Q M"]]


def law(observation: Observation) -> Law:
    """Return log p(observed | image); ValueError when the observation does not grant it."""
    if LOG_PROB in observation.grants and isinstance(observation, ObservationLikelihood):
        return observation.log_prob
    if NOISELESS not in observation.grants:
        raise ValueError(f"{observation.name!r} does not grant {LOG_PROB!r}: its law is not known")

    def equal(
        observed: Float[Tensor, "Q F"], images: Float[Tensor, "M C H W"]
    ) -> Float[Tensor, "Q M"]:
        codes = observation.sample(images, torch.Generator())  # noiseless: draws nothing
        _, group = torch.unique(torch.cat([observed, codes]), dim=0, return_inverse=True)
        mine, known = group[: len(observed), None], group[None, len(observed) :]
        return torch.eq(mine, known).double().log()

    return equal


def scores(
    log_prob: Float[Tensor, "Q M"],
    own: Int[Tensor, " Q"],
    same: Bool[Tensor, "Q M"],
    candidates: int,
) -> Float[Tensor, "3 Q"]:
    """Return chance of identification, log2 posterior of the own image, and within its class.

    NetError where an image could not have sent its own message: it was encoded to other bits.
    """
    mine = log_prob.gather(1, own[:, None])[:, 0]
    if not mine.isfinite().all():
        raise NetError(
            "a message is impossible for the image that sent it: the encoder gives other bits in "
            "batches of other sizes; set net.noise above 0, or take more candidates"
        )
    within = log_prob.masked_fill(~same, -torch.inf)
    information = (mine - log_prob.logsumexp(1)) / log(2)
    beyond = (mine - within.logsumexp(1)) / log(2)
    return torch.stack([identification(log_prob, own, candidates), information, beyond])


def half_width(values: Float[Tensor, " M"], generator: torch.Generator) -> float:
    """Return half the 95 % percentile interval of the mean; Efron, 1979."""
    count = len(values)
    means = torch.stack(
        [
            values[torch.randint(count, (count,), generator=generator)].mean()
            for _ in range(RESAMPLES)
        ]
    )
    low, high = means.quantile(means.new_tensor([0.025, 0.975])).tolist()
    return float(high - low) / 2
