"""How often the right image of several is picked, exactly averaged over the wrong ones drawn."""

import numpy as np
import scipy
import torch
from jaxtyping import Float, Int
from torch import Tensor

ROUNDING = 1e-9  # scores that differ by less, relative to the right one's, are ties


def identification(
    scores: Float[Tensor, "Q M"], own: Int[Tensor, " Q"], candidates: int, top: int = 1
) -> Float[Tensor, " Q"]:
    """Return each query's chance that its own image is among the `top` scores of the candidates.

    Column own[q] of `scores` is the right image of query q; more is better. The candidates are it
    and others drawn at random without replacement, `candidates` in all, or all M if they are
    fewer. Among equals the order is random: one of n ties for the first place counts 1/n.

    Of the b images that score higher, a hypergeometric number is drawn, so the average over all
    draws has the closed form P(Hypergeom(M-1, b, candidates-1) < top). ValueError unless
    `candidates` and `top` are at least 1, or on a score that is NaN.
    """
    if candidates < 1 or top < 1:
        raise ValueError(f"candidates is {candidates}, top is {top}; both must be at least 1")
    if scores.isnan().any():
        raise ValueError("a score is NaN, must be a number; check for a diverged model")
    others = scores.shape[1] - 1
    mine = scores.double().gather(1, own[:, None])
    margin = torch.where(mine.isfinite(), ROUNDING * (1 + mine.abs()), 0.0)
    better = (scores > mine + margin).sum(1)
    ties = (scores >= mine - margin).sum(1) - better - 1
    drawn = min(candidates - 1, others)
    ahead = np.arange(others + 1)
    chance = scipy.stats.hypergeom.cdf(top - 1, others, ahead, drawn) if others else np.ones(1)
    below = torch.from_numpy(np.concatenate([[0.0], np.cumsum(chance)]))
    return (below[better + ties + 1] - below[better]) / (ties + 1)
