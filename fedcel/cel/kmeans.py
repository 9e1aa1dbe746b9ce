"""K-means inside each class, all classes at once (Lloyd 1982; k-means++: Arthur et al. 2007)."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

CHUNK = 2048
"""Examples whose (K, D) differences are held in memory at a time."""

SWEEPS = 50
"""Lloyd iterations at most; it stops earlier when no example changes its cluster."""


class Clusters(NamedTuple):
    """Centres (C, K, D), and for each example its slot c K + k (N,) and |z - centre|^2 (N,)."""

    centres: Float[Tensor, "C K D"]
    slot: Int[Tensor, " N"]
    distance: Float[Tensor, " N"]


def distances(
    z: Float[Tensor, "N D"],
    y: Int[Tensor, " N"],
    centres: Float[Tensor, "C K D"],
    usable: Bool[Tensor, "C K"],
) -> Float[Tensor, "N K"]:
    """Return |z_i - mu_k|^2 to the centres of the own class, infinite where not usable."""
    parts = [
        (some[:, None] - centres[own]).square().sum(2)
        for some, own in zip(torch.split(z, CHUNK), torch.split(y, CHUNK), strict=True)
    ]
    return torch.where(usable[y], torch.cat(parts), torch.inf)


def seeded(
    z: Float[Tensor, "N D"],
    y: Int[Tensor, " N"],
    centres: Float[Tensor, "C K D"],
    kept: Bool[Tensor, "C K"],
    wanted: Bool[Tensor, "C K"],
    generator: torch.Generator,
) -> Float[Tensor, "C K D"]:
    """Return the kept centres and k-means++ draws for the other wanted slots, N above 0."""
    if not (wanted & ~kept).any():
        return centres
    centres, usable = centres.clone(), kept.clone()
    outside = y[:, None] != torch.arange(len(centres))
    for k in range(centres.shape[1]):
        gap = distances(z, y, centres, usable).amin(1)
        chance = torch.where(gap.isinf(), 1.0, gap).clamp_min(torch.finfo(z.dtype).tiny)
        # The first of exponential clocks to ring is a draw in proportion to their rates.
        clock = torch.empty_like(chance).exponential_(generator=generator) / chance
        first = clock[:, None].masked_fill(outside, torch.inf).argmin(0)
        new = wanted[:, k] & ~usable[:, k]
        centres[:, k] = torch.where(new[:, None], z[first], centres[:, k])
        usable[:, k] |= new
    return centres


def lloyd(
    z: Float[Tensor, "N D"],
    y: Int[Tensor, " N"],
    centres: Float[Tensor, "C K D"],
    usable: Bool[Tensor, "C K"],
) -> Clusters:
    """Return converged clusters; a cluster that lost all its examples keeps its centre."""
    shape, slot = centres.shape, None
    for _ in range(SWEEPS):
        gap, nearest = distances(z, y, centres, usable).min(1)
        moved, slot = slot, y * shape[1] + nearest
        if moved is not None and torch.equal(moved, slot):
            break
        counts = slot.bincount(minlength=shape[0] * shape[1])[:, None]
        sums = torch.zeros_like(centres).flatten(0, 1).index_add(0, slot, z)
        mean = torch.where(counts > 0, sums / counts.clamp_min(1), centres.flatten(0, 1))
        centres = mean.view(shape)
    gap, nearest = distances(z, y, centres, usable).min(1)
    return Clusters(centres, y * shape[1] + nearest, gap)
