"""Chance to pick the right image of several, exactly averaged over the wrong ones drawn."""

from functools import lru_cache

import numpy as np
import scipy
import torch
from jaxtyping import Float, Int
from torch import Tensor

TIE_TOLERANCE = 1e-9  # scores that differ by less, relative to the right one's, are ties


def identification(
    scores: Float[Tensor, "Q M"], own_column: Int[Tensor, " Q"], candidates: int, top: int = 1
) -> Float[Tensor, " Q"]:
    """Compute each query's chance that its own image is among the best of the candidates.

    The candidates are the right image and others drawn at random without replacement. Among equals
    the order is random: one of n ties for the first place counts 1/n. Of the b images that score
    higher than the right one, a hypergeometric number is drawn, so that the average over all draws
    has the closed form P(Hypergeom(M-1, b, candidates-1) < top).

    Args:
        scores: Score of each query with each image, (Q, M); more is better.
        own_column: Column of each query's own image, (Q,).
        candidates: Images among which the right one is picked, 1 or more; all M if they are fewer.
        top: Number of best candidates, 1 or more, among which it must be.

    Returns:
        The chances, (Q,).

    Raises:
        ValueError: `candidates` or `top` is below 1, or a score is NaN.
    """
    if candidates < 1 or top < 1:
        raise ValueError(f"candidates is {candidates}, top is {top}; both must be at least 1")
    if scores.isnan().any():
        raise ValueError("a score is NaN, must be a number; check for a diverged model")
    wrong = scores.shape[1] - 1
    own_score = scores.double().gather(1, own_column[:, None])
    margin = torch.where(own_score.isfinite(), TIE_TOLERANCE * (1 + own_score.abs()), 0.0)
    better = (scores > own_score + margin).sum(1)
    ties = (scores >= own_score - margin).sum(1) - better - 1
    below = cumulative_chances(wrong, min(candidates - 1, wrong), top).to(scores.device)
    return (below[better + ties + 1] - below[better]) / (ties + 1)


def identify_by_label(labels: Int[Tensor, " M"], candidates: int) -> float:
    """Compute how often an attacker who is told nothing but the label picks the right image.

    Args:
        labels: Of the M images.
        candidates: Images among which the right one is picked, 1 or more; all M if they are fewer.

    Returns:
        The chance, mean over images.
    """
    total = 0.0
    for label, size in zip(*torch.unique(labels, return_counts=True), strict=True):
        is_alike = labels.eq(label)
        scores, first = is_alike.double()[None], is_alike.nonzero()[0]
        total += int(size) * float(identification(scores, first, candidates))
    return total / len(labels)


@lru_cache(maxsize=8)
def cumulative_chances(wrong: int, drawn_wrong: int, top: int) -> Float[Tensor, " B"]:
    """Return the sum of P(Hypergeom(wrong, b, drawn_wrong) < top) over b below 0, 1, ..."""
    ahead = np.arange(wrong + 1)
    chance = scipy.stats.hypergeom.cdf(top - 1, wrong, ahead, drawn_wrong) if wrong else np.ones(1)
    return torch.from_numpy(np.concatenate([[0.0], np.cumsum(chance)]))
