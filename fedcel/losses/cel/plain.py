"""Spread around the batch's own class means: the baseline of every other kind."""

from typing import ClassVar, Literal, final

import torch

from fedcel.losses.cel.cel_module import CELModule
from fedcel.losses.cel.conditional_entropy import (
    SpreadCEL,
    class_members,
    class_shares,
    drop_singletons,
    plain_spread,
    select_measured,
    weighted_mean,
)
from fedcel.losses.protocol import Batch, MetricRanges, State, Term


@final
class Plain(SpreadCEL):
    """Keeps each class close to its mean in the batch.

    sum_c beta_c R(v_c), v_c = mean |z_i - zbar_c|^2 over the batch's members of class c. Classes
    with fewer than 2 members carry no signal: they are left out and beta is taken over the rest.

    References:
        Xia et al., CVPR 2025, with one cluster a class and the batch's mean as its centre.
    """

    kind: Literal["plain"] = "plain"
    metric_ranges: ClassVar[MetricRanges] = {"spread": lambda scale: scale.spread}

    def loss(self, state: State, batch: Batch, measure: bool) -> Term:
        """Compute the loss, exactly 0 when no class has 2 members; see `LossTerm.loss`.

        Logged as `spread`: the mean of v_c over the members of classes of 2 or more.
        """
        z, y = batch.z, batch.y
        members = class_members(y, self._cut.classes, z)
        counts = drop_singletons(members.counts)
        v = plain_spread(z, y, members)
        loss = torch.linalg.vecdot(class_shares(counts, self.share), self.charge(v))
        if not measure:
            return Term(loss, {})
        return Term(loss, select_measured({"spread": weighted_mean(v, counts)}, counts.sum(-1) > 0))


class PlainCEL(CELModule, options=Plain):
    """Penalises the spread of each class around its mean in the batch; it needs no statistics."""
