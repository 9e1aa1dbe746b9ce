"""Scores of predicted probabilities, of their uncertainty, and of the spread of smashed data."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

BINS = 15  # Guo et al., ICML 2017, section 5


def score_probabilities(
    probabilities: Float[Tensor, "N C"], labels: Int[Tensor, " N"]
) -> dict[str, float]:
    """Return accuracy, nll (nats), ece and brier; ValueError when rows are no probabilities."""
    return {
        "accuracy": accuracy(probabilities, labels),
        "nll": nll(probabilities, labels),
        "ece": ece(probabilities, labels),
        "brier": brier(probabilities, labels),
    }


def accuracy(probabilities: Float[Tensor, "N C"], labels: Int[Tensor, " N"]) -> float:
    """Return the share of labels that are the most probable class, the first of equals."""
    p = check_probabilities(probabilities)
    return float((p.argmax(1) == labels).double().mean())


def nll(probabilities: Float[Tensor, "N C"], labels: Int[Tensor, " N"]) -> float:
    """Return the mean of -log p(label), in nats.

    A probability that underflowed to 0 counts as the smallest normal number of its dtype: at most
    87.3 nats an image in float32, 708.4 in float64, where the true value may be larger.
    """
    p = check_probabilities(probabilities).gather(1, labels[:, None])
    return float(-p.clamp_min(torch.finfo(probabilities.dtype).tiny).log().mean())


def brier(probabilities: Float[Tensor, "N C"], labels: Int[Tensor, " N"]) -> float:
    """Return the mean over images of sum_c (p_c - [c = label])^2, in [0, 2]; Brier, 1950, eq. 2."""
    p = check_probabilities(probabilities)
    truth = torch.nn.functional.one_hot(labels, p.shape[1])
    return float((p - truth).square().sum(1).mean())


def ece(probabilities: Float[Tensor, "N C"], labels: Int[Tensor, " N"], bins: int = BINS) -> float:
    """Return the expected calibration error of the top class; Guo et al., ICML 2017, equation 3.

    From the bins of `reliability`, which a library that returns the error alone does not show.
    """
    count, confidence, right = _bin_sums(probabilities, labels, bins)
    return float((confidence - right).abs().sum() / count.sum())


def reliability(
    probabilities: Float[Tensor, "N C"], labels: Int[Tensor, " N"], bins: int = BINS
) -> dict[str, list[float | None]]:
    """Return mean confidence, accuracy and count of each bin ((m-1)/M, m/M]; None where empty."""
    count, confidence, right = _bin_sums(probabilities, labels, bins)

    def mean(sums: Tensor) -> list[float | None]:
        return [s / n if n else None for s, n in zip(sums.tolist(), count.tolist(), strict=True)]

    return {"confidence": mean(confidence), "accuracy": mean(right), "count": count.tolist()}


def _bin_sums(
    probabilities: Float[Tensor, "N C"], labels: Int[Tensor, " N"], bins: int
) -> tuple[Int[Tensor, " M"], Float[Tensor, " M"], Float[Tensor, " M"]]:
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
            "pass softmax outputs, and lower local.rate where a model diverged"
        )
    return p


def predictive_entropy(samples: Float[Tensor, "S N C"]) -> Float[Tensor, " N"]:
    """Return the entropy of the averaged prediction, in nats: the total uncertainty."""
    return _entropy(check_probabilities(samples).mean(0))


def bald(samples: Float[Tensor, "S N C"]) -> Float[Tensor, " N"]:
    """Return I(label; model) in nats: what S posterior samples disagree about.

    Entropy of the average less the average entropy; Houlsby et al., 2011, equation 2.
    """
    expected = _entropy(check_probabilities(samples)).mean(0)
    return (predictive_entropy(samples) - expected).clamp_min(0)  # rounding only; Jensen's >= 0


def _entropy(p: Float[Tensor, "... C"]) -> Float[Tensor, "..."]:
    return -torch.xlogy(p, p).sum(-1)


def auroc(inside: Float[Tensor, " N"], outside: Float[Tensor, " M"]) -> float:
    """Return how often an image from outside scores above one from inside; a tie counts half.

    The area under the ROC curve of telling them apart by their uncertainty (Hendrycks and Gimpel,
    ICLR 2017, section 2).
    """
    from sklearn.metrics import roc_auc_score  # a second, for its estimators

    strange = torch.cat([torch.zeros(len(inside)), torch.ones(len(outside))])
    return float(roc_auc_score(strange.numpy(), torch.cat([inside, outside]).numpy()))


def within_class_spread(z: Float[Tensor, "N D"], y: Int[Tensor, " N"]) -> Float[Tensor, ""]:
    """Return the mean over images of |z - mean of its own class|^2, unit: z squared."""
    sums = z.new_zeros(int(y.max()) + 1, z.shape[1]).index_add(0, y, z)
    means = sums / y.bincount()[:, None].clamp_min(1)  # absent classes are never looked up
    return (z - means[y]).square().sum(1).mean()


def between_group_spread(
    z: Float[Tensor, "N D"], y: Int[Tensor, " N"], group: Int[Tensor, " N"]
) -> Float[Tensor, ""]:
    """Return the mean over images of |class mean in its group - class mean of all|^2.

    Unit: z squared. Groups that are random draws of the same images differ too, by about the
    within-class spread times (pairs of class and group - classes) / N.
    """
    # Numbered by those that are there: of ten thousand groups few have an image of each class.
    every = y * (int(group.max()) + 1) + group
    _, pair = torch.unique(every, return_inverse=True)
    counts = pair.bincount()
    sums = z.new_zeros(len(counts), z.shape[1]).index_add(0, pair, z)
    return within_class_spread((sums / counts[:, None])[pair], y)


def total_spread(z: Float[Tensor, "N D"]) -> Float[Tensor, ""]:
    """Return the mean over images of |z - mean of all|^2, unit: z squared."""
    return (z - z.mean(0)).square().sum(1).mean()
