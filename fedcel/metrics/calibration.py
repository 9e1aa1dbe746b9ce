"""Scores of predicted probabilities, and their uncertainty.

Rows that are no distributions, and no rows at all, are refused by a ValueError.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

CALIBRATION_BINS = 15  # Guo et al., ICML 2017, section 5


def score_probabilities(
    probabilities: Float[Tensor, "N C"], labels: Int[Tensor, " N"]
) -> dict[str, float]:
    """Score predicted probabilities.

    Args:
        probabilities: (N, C), each row a distribution over classes.
        labels: (N,).

    Returns:
        `accuracy` of the most probable class, the first of equals; `nll` (nats); `ece`; `brier`,
        the mean over images of sum_c (p_c - [c = label])^2, in [0, 2].

    References:
        Brier, Monthly Weather Review, 1950, equation 2.
    """
    p = check_probabilities(probabilities)
    truth = torch.nn.functional.one_hot(labels, p.shape[1])
    return {
        "accuracy": float((p.argmax(1) == labels).double().mean()),
        "nll": nll(probabilities, labels),
        "ece": ece(probabilities, labels),
        "brier": float((p - truth).square().sum(1).mean()),
    }


def nll(probabilities: Float[Tensor, "N C"], labels: Int[Tensor, " N"]) -> float:
    """Measure the negative log-likelihood of the labels.

    A probability that underflowed to 0 counts as the smallest normal number of its dtype: at most
    87.3 nats an image in float32, 708.4 in float64, where the true value may be larger.

    Args:
        probabilities: (N, C), each row a distribution over classes.
        labels: (N,).

    Returns:
        The mean of -log p(label), in nats.
    """
    p = check_probabilities(probabilities).gather(1, labels[:, None])
    return float(-p.clamp_min(torch.finfo(probabilities.dtype).tiny).log().mean())


def ece(probabilities: Float[Tensor, "N C"], labels: Int[Tensor, " N"]) -> float:
    """Measure the expected calibration error of the most probable class.

    From the bins of `reliability`, which a library that returns only the error does not show.

    Args:
        probabilities: (N, C), each row a distribution over classes.
        labels: (N,).

    Returns:
        The mean over images of |confidence - accuracy| of their bin, in [0, 1].

    References:
        Guo et al., ICML 2017, equation 3.
    """
    count, confidence, right = _bin_sums(probabilities, labels, CALIBRATION_BINS)
    return float((confidence - right).abs().sum() / count.sum())


def reliability(
    probabilities: Float[Tensor, "N C"], labels: Int[Tensor, " N"], bins: int = CALIBRATION_BINS
) -> dict[str, list[float | None]]:
    """Compute the points of a reliability diagram.

    Args:
        probabilities: (N, C), each row a distribution over classes.
        labels: (N,).
        bins: Number M of equal bins of confidence, 1 or more; bin m is ((m-1)/M, m/M].

    Returns:
        Of each bin its mean `confidence`, `accuracy` (both None where it is empty) and `count`.
    """
    count, confidence, right = _bin_sums(probabilities, labels, bins)

    def mean(sums: Tensor) -> list[float | None]:
        return [s / n if n else None for s, n in zip(sums.tolist(), count.tolist(), strict=True)]

    return {"confidence": mean(confidence), "accuracy": mean(right), "count": count.tolist()}


def _bin_sums(
    probabilities: Float[Tensor, "N C"], labels: Int[Tensor, " N"], bins: int
) -> tuple[Int[Tensor, " M"], Float[Tensor, " M"], Float[Tensor, " M"]]:
    """Return each bin's number of images, sum of confidences and number of right answers."""
    confidence, top = check_probabilities(probabilities).max(1)
    place = (confidence * bins).ceil().long().clamp(1, bins) - 1  # float rows may top 1 by an ulp
    count = place.bincount(minlength=bins)
    right = place.bincount((top == labels).double(), minlength=bins)
    return count, place.bincount(confidence, minlength=bins), right


def check_probabilities(probabilities: Float[Tensor, "... C"]) -> Float[Tensor, "... C"]:
    """Return probabilities in double precision; ValueError unless each row is a distribution."""
    p = probabilities.double()
    if p.numel() == 0:
        raise ValueError(f"probabilities are {tuple(p.shape)}, must hold at least one row")
    off = (p.sum(-1) - 1).abs().max()
    if not (off < 1e-3 and p.min() >= 0):  # also true of NaN
        raise ValueError(
            f"probabilities are no distributions (smallest {p.min():.3g}, sums off by {off:.3g}); "
            "pass softmax outputs; a model that diverged needs a lower learning rate"
        )
    return p


def predictive_entropy(samples: Float[Tensor, "S N C"]) -> Float[Tensor, " N"]:
    """Measure how unsure the averaged prediction is: the total uncertainty.

    Args:
        samples: Probabilities of S posterior samples about N images, (S, N, C).

    Returns:
        The entropy of each averaged prediction, (N,) in nats.
    """
    return _entropy(check_probabilities(samples).mean(0))


def bald(samples: Float[Tensor, "S N C"]) -> Float[Tensor, " N"]:
    """Measure what posterior samples disagree about: I(label; model).

    Args:
        samples: Probabilities of S posterior samples about N images, (S, N, C).

    Returns:
        The entropy of the average less the average entropy, (N,) in nats, 0 or more.

    References:
        Houlsby et al., 2011, equation 2.
    """
    expected = _entropy(check_probabilities(samples)).mean(0)
    return (predictive_entropy(samples) - expected).clamp_min(0)  # rounding only; Jensen's >= 0


def _entropy(p: Float[Tensor, "... C"]) -> Float[Tensor, "..."]:
    return -torch.xlogy(p, p).sum(-1)
