"""Spread around the batch's own class means: the baseline of every other kind."""

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fedcel.losses.cel.class_spread import (
    class_members,
    drop_singletons,
    plain_spread,
    weighted_mean,
)
from fedcel.losses.cel.penalties import Penalty, Share, class_shares
from fedcel.losses.cel.protocol import Codes, State, Term


@final
@dataclass(frozen=True)
class Plain:
    """sum_c beta_c R(v_c), v_c = mean |z_i - zbar_c|^2 over the batch's members of class c.

    One cluster a class in the conditional entropy loss of Xia et al., CVPR 2025, with the batch's
    mean as its centre. Classes with fewer than 2 members carry no signal: they are left out and
    beta is taken over the rest. Labels are below `classes`. Keeps no state.
    """

    penalty: Penalty
    share: Share
    classes: int

    def refresh(self, state: State | None, codes: Codes, generator: torch.Generator) -> State:
        """Return an empty state."""
        return {}

    def loss(
        self, state: State, z: Float[Tensor, "B D"], y: Int[Tensor, " B"], measure: bool = True
    ) -> Term:
        """Return the loss, exactly 0 when no class has 2 members; the mean `spread`, if one has."""
        group = class_members(y, self.classes, z)
        counts = drop_singletons(group.counts)
        v = plain_spread(z, y, group)
        loss = class_shares(counts, self.share) @ self.penalty(v)
        return Term(loss, {"spread": weighted_mean(v, counts)} if measure and counts.any() else {})

    def step(self, state: State, z: Float[Tensor, "B D"], y: Int[Tensor, " B"]) -> State:
        """Return the state: nothing is learned."""
        return state
