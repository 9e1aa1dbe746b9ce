"""What messages tell of z where each value of it is dropped at times: the law is a mixture."""

from math import log

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import softplus

from fedcel.nets import Cut

STEPS = 10
"""Of expectation and maximisation; values have nearly settled by then."""
LEAST = 1e-6  # messages that came through: fewer would divide by nothing


def mixture_misfit(
    z: Float[Tensor, "B D"], observed: Float[Tensor, "B D"], cut: Cut
) -> Float[Tensor, " B"]:
    """Return the mean over values of -2 sigma^2 log p(z~ | z) under dropout, up to a constant.

    The law of `Cut.log_prob`, row by row and with a gradient; unit of z squared. At sigma 0, where
    it has no gradient: the squared gap of what came through, a value of 0 says nothing.
    """
    kept = (observed - z).square()
    if cut.sigma == 0:
        return torch.where(torch.eq(observed, 0.0), 0.0, kept).mean(1)
    double = 2 * cut.sigma**2
    own, gone = log(1 - cut.dropout) - kept / double, log(cut.dropout) - observed.square() / double
    return -double * torch.logaddexp(own, gone).mean(1)


def most_likely_features(parts: Float[Tensor, "B m D"], cut: Cut) -> Float[Tensor, "B D"]:
    """Return the z of largest likelihood of m messages each, value by value.

    Without a prior: one would shrink every value, and a search that averages over many values takes
    that for the image. Expectation and maximisation (Dempster, Laird and Rubin, 1977, section 4.3)
    from the messages' mean and from the one farthest from 0; the better end stays. At sigma 0 what
    came through is z, and 0 where nothing did.
    """
    if cut.sigma == 0:
        return parts.sum(1) / parts.ne(0).sum(1).clamp_min(1)
    odds, scaled = log((1 - cut.dropout) / cut.dropout), parts / cut.sigma**2

    def evidence(z: Float[Tensor, "B D"]) -> Float[Tensor, "B m D"]:
        """Return the log-odds that z came through in each message."""
        return odds + z[:, None] * scaled - (z.square() / (2 * cut.sigma**2))[:, None]

    def settled(z: Float[Tensor, "B D"]) -> Float[Tensor, "B D"]:
        for _ in range(STEPS):
            kept = torch.sigmoid(evidence(z))
            z = (kept * parts).sum(1) / kept.sum(1).clamp_min(LEAST)
        return z

    farthest = parts.gather(1, parts.abs().argmax(1, keepdim=True)).squeeze(1)
    one, other = settled(parts.mean(1) / (1 - cut.dropout)), settled(farthest)
    better = softplus(evidence(one)).sum(1) >= softplus(evidence(other)).sum(1)
    return torch.where(better, one, other)
