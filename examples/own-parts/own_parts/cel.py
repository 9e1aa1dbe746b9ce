"""A conditional entropy loss: standard deviations instead of variances."""

from dataclasses import dataclass

import torch

from fedcel import Batch, ClientLoss, Term
from fedcel.losses.cel import CEL, Penalty, State, class_members

OFFSET = 1e-8  # keeps the root's slope finite at 0


@dataclass(frozen=True)
class Deviations(ClientLoss):
    """sum_c beta_c sum_d sd_cd, of the classes with two members or more in the batch.

    A root pulls a small deviation as hard as a large one, so single features become constant in a
    class, where a sum of variances makes all of them a little smaller. beta is a class's share.
    """

    classes: int

    def loss(self, state: State, batch: Batch, measure: bool = True) -> Term:
        """Return the loss of features z (B, D), unit of z, and the mean deviation."""
        z, y = batch.z, batch.y
        # DataError on a label that is no class
        member = class_members(y, self.classes, z).one_hot.T
        count = member.sum(1, keepdim=True)
        mean = member @ z / count.clamp_min(1)
        variance = member @ (z - mean[y]).square() / count.clamp_min(1)
        deviation = (variance + OFFSET).sqrt() - OFFSET**0.5
        paired = torch.where(count > 1, count, 0)
        beta = paired / paired.sum().clamp_min(1)
        loss = (beta * deviation).sum()
        return Term(loss, {"deviation": loss.detach() / z.shape[1]} if measure else {})


def build_deviations(cel: CEL, penalty: Penalty, features: int, classes: int) -> Deviations:
    """Return the loss; it has a form of its own, so `cel.penalty` plays no part."""
    return Deviations(classes)
