"""Mutual information of images and messages given the label, bounded in the batch."""

from dataclasses import dataclass
from typing import Literal, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fedcel.losses.cel.class_spread import (
    Members,
    class_members,
    drop_singletons,
    plain_spread,
    uniform_weights,
    weighted_mean,
    weighted_means,
)
from fedcel.losses.cel.penalties import Share, class_shares
from fedcel.losses.cel.protocol import Codes, State, Term
from fedcel.settings import check_noise

Bound = Literal["upper", "lower"]
DIVISORS: dict[Bound, float] = {"upper": 2.0, "lower": 8.0}
"""Of |z_i - z_j|^2 / sigma^2: the Kullback-Leibler and the Bhattacharyya distance."""


@final
@dataclass(frozen=True)
class MutualInformation:
    """sum_c beta_c I_c, I_c = -mean_i log mean_j exp(-|z_i - z_j|^2 / (a sigma^2)), i, j in c.

    In nats, over the batch's members of class c, j = i included. Pairwise bounds of what
    z~ = z + N(0, sigma^2 I) tells about which member was sent (Kolchinsky and Tracey, Entropy
    2017: their pairwise estimator of H(z~) minus the noise's own entropy): `upper` a = 2, `lower`
    a = 8. 0 <= I_c <= log n_c whatever the bound; for small spreads v_c, a = 2, I_c goes to
    v_c / sigma^2. Between codes many sigma apart the gradient vanishes.

    Classes with fewer than 2 members carry no signal: they are left out and beta is taken over the
    rest. `sigma` > 0 in units of z, else SettingsError. NaN codes give a NaN loss. No state.
    """

    sigma: float
    share: Share
    classes: int
    bound: Bound = "upper"

    def __post_init__(self) -> None:
        """Refuse a channel without noise, which tells everything."""
        check_noise("kind", "mutual-information", self.sigma)

    def refresh(self, state: State | None, codes: Codes, generator: torch.Generator) -> State:
        """Return an empty state."""
        return {}

    def loss(
        self, state: State, z: Float[Tensor, "B D"], y: Int[Tensor, " B"], measure: bool = True
    ) -> Term:
        """Return the loss, exactly 0 when no class has 2 members.

        Logged, means over the members of classes of 2 or more: `spread`, the plain one,
        `information` in nats, and `information-cap`, log n_c, which it cannot exceed.
        """
        group = class_members(y, self.classes, z)
        counts = drop_singletons(group.counts)
        scale = DIVISORS[self.bound] * self.sigma**2
        near = torch.exp(squared_distances(z, y, group) / -scale) * (y[:, None] == y)
        # Every sum holds exp(0) for j = i: no logarithm of 0, and never above n_c.
        own = near.sum(1) / group.counts.double()[y]
        information = -own.log().to(z.dtype) @ uniform_weights(group)
        loss = class_shares(counts, self.share) @ information
        if not (measure and counts.any()):  # without a pair there is nothing to measure
            return Term(loss, {})
        metrics = {
            "spread": weighted_mean(plain_spread(z.detach(), y, group), counts),
            "information": weighted_mean(information, counts),
            "information-cap": weighted_mean(counts.clamp_min(1).log(), counts),
        }
        return Term(loss, metrics)

    def step(self, state: State, z: Float[Tensor, "B D"], y: Int[Tensor, " B"]) -> State:
        """Return the state: nothing is learned."""
        return state


def squared_distances(
    z: Float[Tensor, "B D"], y: Int[Tensor, " B"], group: Members
) -> Float[Tensor, "B B"]:
    """Return |z_i - z_j|^2 in float64, exactly 0 for i = j; meant for pairs of the same class.

    By |a|^2 - 2ab + |b|^2 on codes minus their class mean: float64 leaves an absolute error of
    1e-16 of the class's squared radius, where float32 would leave 1e-7 of it. The same from
    exact differences by torch.cdist took 40 times as long at B = 128, D = 4096.
    """
    centred = z.double() - weighted_means(z, uniform_weights(group))[y]
    gram = centred @ centred.T
    power = gram.diagonal()
    return (power[:, None] + power - 2 * gram).relu()  # rounding leaves some just below 0
