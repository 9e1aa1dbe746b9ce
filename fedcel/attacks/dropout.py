"""What messages tell of z where each value of it is dropped at times: the law is a mixture."""

from math import log

import torch
from jaxtyping import Float
from torch import Tensor

from fedcel.cut import Cut

STEPS = 20
"""Of expectation and maximisation; values have settled by then."""


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


def most_likely(parts: Float[Tensor, "B m D"], cut: Cut) -> Float[Tensor, "B D"]:
    """Return the z of largest posterior density of m messages each, value by value.

    The prior is normal around 0 with the second moment that the messages show. Expectation and
    maximisation (Dempster, Laird and Rubin, 1977, section 4.3) from the messages' mean and from the
    one farthest from 0; the better end stays. At sigma 0 what came through is z, and 0 where
    nothing did.
    """
    if cut.sigma == 0:
        return parts.sum(1) / parts.ne(0).sum(1).clamp_min(1)
    double = 2 * cut.sigma**2
    gone = log(cut.dropout) - parts.square() / double
    moment = (parts.square().mean((0, 1)) - cut.sigma**2) / (1 - cut.dropout)
    prior = cut.sigma**2 / moment.clamp_min(1e-3 * cut.sigma**2)

    def own(z: Float[Tensor, "B D"]) -> Float[Tensor, "B m D"]:
        return log(1 - cut.dropout) - (parts - z[:, None]).square() / double

    def settled(z: Float[Tensor, "B D"]) -> Float[Tensor, "B D"]:
        for _ in range(STEPS):
            kept = torch.sigmoid(own(z) - gone)
            z = (kept * parts).sum(1) / (kept.sum(1) + prior)
        return z

    def density(z: Float[Tensor, "B D"]) -> Float[Tensor, "B D"]:
        return torch.logaddexp(own(z), gone).sum(1) - prior * z.square() / double

    farthest = parts.gather(1, parts.abs().argmax(1, keepdim=True)).squeeze(1)
    one, other = settled(parts.mean(1) / (1 - cut.dropout)), settled(farthest)
    return torch.where(density(one) >= density(other), one, other)
