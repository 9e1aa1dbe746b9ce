"""Features whose distances say little about the distances of the images."""

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from fedcel.losses.cel.protocol import State, Term


def double_centre(x: Float[Tensor, "B D"]) -> Float[Tensor, "B B"]:
    """Return |x_i - x_j| less the means of its row and column, plus the mean of all.

    Szekely, Rizzo and Bakirov, Annals of Statistics 2007, definition 4.
    """
    # Not by a matrix product: it gives equal rows a distance, and that a boundless gradient.
    distance = torch.cdist(x, x, compute_mode="donot_use_mm_for_euclid_dist")
    return distance - distance.mean(0) - distance.mean(1, keepdim=True) + distance.mean()


def distance_correlation(x: Float[Tensor, "B N"], z: Float[Tensor, "B D"]) -> Float[Tensor, ""]:
    """Return the distance correlation of B pairs, in [0, 1]; not squared.

    The square root of mean(A B) / sqrt(mean(A^2) mean(B^2)), A and B the centred distances
    (Szekely et al., 2007, equations 2.8 to 2.10). 0, with a gradient of 0, where x or z has no
    spread. It is the biased statistic: of independent x and z it is near 0 for B large against N
    and D, and near 1 for N and D large against B.
    """
    a, b = double_centre(x), double_centre(z)
    covariance = (a * b).mean()
    scale = a.square().mean().sqrt() * b.square().mean().sqrt()
    if not min(covariance, scale) > 0:
        return 0 * b.sum()
    return (covariance / scale).sqrt()


@final
@dataclass(frozen=True)
class NoPeek:
    """Makes the distances between features independent of the distances between images.

    The loss is the distance correlation of images and features in the batch, before the noise of
    the cut. There is no state.

    References:
        Vepakomma et al., NoPeek, ICDM workshops 2020.
    """

    def refresh(self, state: State | None, generator: torch.Generator) -> State:
        """Return an empty state; see `Defence.refresh`."""
        return {}

    def loss(
        self,
        state: State,
        x: Float[Tensor, "B C H W"],
        z: Float[Tensor, "B D"],
        smashed: Float[Tensor, "B D"],
        measure: bool = True,
    ) -> Term:
        """Compute the correlation, in [0, 1]; see `Defence.loss`.

        It is also what is logged, as `distance-correlation`.
        """
        correlation = distance_correlation(x.flatten(1), z)
        return Term(correlation, {"distance-correlation": correlation.detach()} if measure else {})

    def step(self, state: State) -> State:
        """Return the state as it is; see `Defence.step`."""
        return state
