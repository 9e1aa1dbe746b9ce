"""Mutual information of images and smashed data given the label, bounded in the batch."""

from math import log
from typing import ClassVar, Literal, final

import torch
from jaxtyping import Float, Int
from pydantic import Field
from torch import Tensor

from fedcel.losses.cel.cel_module import CELModule
from fedcel.losses.cel.conditional_entropy import (
    CEL,
    Members,
    class_members,
    class_shares,
    drop_singletons,
    plain_spread,
    require_noise,
    select_measured,
    select_rows,
    uniform_weights,
    weighted_mean,
    weighted_means,
    weighted_sums,
)
from fedcel.losses.protocol import Batch, MetricRange, MetricRanges, MetricScale, State, Term

InformationBound = Literal["upper", "lower"]
"""Bound of the mutual information that is minimised."""

DIVISORS: dict[InformationBound, float] = {"upper": 2.0, "lower": 8.0}
"""Divisors of |z_i - z_j|^2 / sigma^2: the Kullback-Leibler and the Bhattacharyya distance."""


def find_cap(scale: MetricScale) -> MetricRange:
    """Return the range of the information in a uniform draw from one class's members, in nats."""
    return MetricRange(0.0, log(max(2, scale.batch_size)))


@final
class MutualInformation(CEL):
    """Bounds what smashed data tell about the image beyond its label, in nats.

    sum_c beta_c I_c, I_c = -mean_i log mean_j exp(-|z_i - z_j|^2 / (a sigma^2)) over pairs i, j of
    the batch's members of class c, j = i included: pairwise bounds of what z~ = z + N(0, sigma^2 I)
    tells about which member was sent. 0 <= I_c <= log n_c whatever the bound; for small spreads
    v_c the upper one goes to v_c / sigma^2. Between features many sigma apart the gradient
    vanishes. With noise that depends on the image, or with pooled features, neither is a bound of
    what the message tells.

    Classes with fewer than 2 members carry no signal: they are left out and beta is taken over the
    rest. Features that are NaN give a NaN loss.

    References:
        Kolchinsky and Tracey, Entropy 2017: their pairwise estimator of the entropy of a mixture,
        here H(z~), less the entropy of the noise.
    """

    kind: Literal["mutual-information"] = "mutual-information"
    bound: InformationBound = Field(
        "upper", description="Pairwise bound of the information: upper, or lower."
    )

    metric_ranges: ClassVar[MetricRanges] = {
        "spread": lambda scale: scale.spread,
        "information": find_cap,
        "information-cap": find_cap,
    }

    def check_noise(self, sigma: float) -> None:
        """Refuse a channel without noise, which tells everything; see `CEL.check_noise`."""
        require_noise("kind", self.kind, sigma, instead="plain")

    def loss(self, state: State, batch: Batch, measure: bool) -> Term:
        """Compute the loss, exactly 0 when no class has 2 members; see `LossTerm.loss`.

        Logged, as means over the members of classes of 2 or more: `spread`, that of `Plain`;
        `information`, I_c; `information-cap`, log n_c, which I_c cannot exceed.
        """
        z, y = batch.z, batch.y
        members = class_members(y, self._cut.classes, z)
        counts = drop_singletons(members.counts)
        scale = DIVISORS[self.bound] * self._cut.sigma**2
        is_alike = y[..., :, None] == y[..., None, :]
        kernel = torch.exp(squared_distances(z, y, members) / -scale) * is_alike
        # Every sum holds exp(0) for j = i: no logarithm of 0, and never above n_c.
        kernel_means = kernel.sum(-1) / members.counts.double().gather(-1, y)
        information = weighted_sums(-kernel_means.log().to(z.dtype), uniform_weights(members))
        loss = torch.linalg.vecdot(class_shares(counts, self.share), information)
        if not measure:
            return Term(loss, {})
        metrics = {
            "spread": weighted_mean(plain_spread(z.detach(), y, members), counts),
            "information": weighted_mean(information, counts),
            "information-cap": weighted_mean(counts.clamp_min(1).log(), counts),
        }
        return Term(loss, select_measured(metrics, counts.sum(-1) > 0))


class MutualInformationCEL(CELModule, options=MutualInformation):
    """Penalises an upper bound in nats on what a message tells beyond the label, in the batch.

    Needs several images of a class in a batch, and noise above 0; no statistics.
    """


def squared_distances(
    z: Float[Tensor, "*k B D"], y: Int[Tensor, "*k B"], members: Members
) -> Float[Tensor, "*k B B"]:
    """Return |z_i - z_j|^2 in float64, exactly 0 for i = j; meant for pairs of the same class.

    By |a|^2 - 2ab + |b|^2 on features minus their class mean: float64 leaves an absolute error of
    1e-16 of the class's squared radius, where float32 would leave 1e-7 of it. The same from
    exact differences by torch.cdist takes 6 times as long at B = 128, D = 4096, gradient included.
    """
    centred = z.double() - select_rows(weighted_means(z, uniform_weights(members)), y)
    gram = centred @ centred.mT
    squares = gram.diagonal(dim1=-2, dim2=-1)
    return (
        squares[..., :, None] + squares[..., None, :] - 2 * gram
    ).relu()  # rounding leaves some just below 0
