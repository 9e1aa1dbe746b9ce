"""Features whose distances say little about the distances of the images."""

from typing import ClassVar, Literal, final

import torch
from jaxtyping import Float
from torch import Tensor

from fedcel.losses.defences.rival import LossRival
from fedcel.losses.protocol import SHARE, Batch, MetricRanges, State, Term


def double_centre(x: Float[Tensor, "*k B D"]) -> Float[Tensor, "*k B B"]:
    """Return |x_i - x_j| less the means of its row and column, plus the mean of all.

    Szekely, Rizzo and Bakirov, Annals of Statistics 2007, definition 4.
    """
    # Not by a matrix product: it gives equal rows a distance, and that a boundless gradient.
    distance = torch.cdist(x, x, compute_mode="donot_use_mm_for_euclid_dist")
    columns, rows = (distance.mean(axis, keepdim=True) for axis in (-2, -1))
    return distance - columns - rows + distance.mean((-2, -1), keepdim=True)


def distance_correlation(
    x: Float[Tensor, "*k B N"], z: Float[Tensor, "*k B D"]
) -> Float[Tensor, "*k"]:
    """Return the distance correlation of B pairs, in [0, 1]; not squared. Of each client's own.

    The square root of mean(A B) / sqrt(mean(A^2) mean(B^2)), A and B the centred distances
    (Szekely et al., 2007, equations 2.8 to 2.10). 0, with a gradient of 0, where x or z has no
    spread. It is the biased statistic: of independent x and z it is near 0 for B large against N
    and D, and near 1 for N and D large against B.
    """
    a, b = double_centre(x), double_centre(z)
    covariance = (a * b).mean((-2, -1))
    variances = a.square().mean((-2, -1)), b.square().mean((-2, -1))
    has_spread = (covariance > 0) & (variances[0] > 0) & (variances[1] > 0)
    # Chosen before the roots: the gradient of one at 0 is infinite, and 0 times that is NaN.
    covariance, of_x, of_z = (
        torch.where(has_spread, part, 1.0) for part in (covariance, *variances)
    )
    scale = of_x.sqrt() * of_z.sqrt()
    return torch.where(has_spread, (covariance / scale).sqrt(), 0 * b.sum((-2, -1)))


@final
class NoPeek(LossRival):
    """Makes the distances between features independent of the distances between images.

    The loss is the distance correlation of images and features in the batch, before the noise of
    the cut. There is no state.

    References:
        Vepakomma et al., NoPeek, ICDM workshops 2020.
    """

    name: Literal["nopeek"] = "nopeek"
    metric_ranges: ClassVar[MetricRanges] = {"distance-correlation": SHARE}

    def loss(self, state: State, batch: Batch, measure: bool) -> Term:
        """Compute the correlation, in [0, 1]; see `LossTerm.loss`.

        It is also what is logged, as `distance-correlation`.
        """
        correlation = distance_correlation(batch.x.flatten(-3), batch.z)
        return Term(correlation, {"distance-correlation": correlation.detach()} if measure else {})
