"""The law of a message whose values are dropped at times: a mixture of what came through and 0."""

from math import log

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import softplus

from fedcel.nets import Cut

EM_STEPS = 10
"""Steps of expectation and maximisation; values have nearly settled by then."""
MIN_MESSAGES = 1e-6  # that came through: fewer would divide by nothing


def mixture_misfit(
    z: Float[Tensor, "B D"], observed: Float[Tensor, "B D"], cut: Cut
) -> Float[Tensor, " B"]:
    """Return the mean over values of -2 sigma^2 log p(z~ | z) under dropout, up to a constant.

    The law of `Cut.log_prob`, row by row and with a gradient; unit of z squared. At sigma 0, where
    it has no gradient: the squared gap of what came through, a value of 0 says nothing.
    """
    squared_gap = (observed - z).square()
    if cut.sigma == 0:
        return torch.where(torch.eq(observed, 0.0), 0.0, squared_gap).mean(1)
    double = 2 * cut.sigma**2
    log_kept = log(1 - cut.dropout) - squared_gap / double
    log_dropped = log(cut.dropout) - observed.square() / double
    return -double * torch.logaddexp(log_kept, log_dropped).mean(1)


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
