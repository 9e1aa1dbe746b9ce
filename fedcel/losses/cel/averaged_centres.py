"""Class centres averaged over clients: what each tells, how the server merges it, how it is used.

This discloses to the server each client's number of images of every class, and the means of their
smashed data within each cluster of a class, without noise.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, final

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor

from fedcel.errors import SettingsError
from fedcel.losses.cel.class_spread import class_members
from fedcel.losses.cel.cluster import DEFAULT_CLUSTERS
from fedcel.losses.cel.kmeans import SWEEPS, centre_distances
from fedcel.losses.cel.protocol import Codes, ConditionalEntropy, State, Term
from fedcel.losses.cel.reservoir import check_finite
from fedcel.settings import CelSettings

Arrays = Sequence[NDArray[np.generic]]
SLACK = 1e-3
"""What rounding may add to sums of weights and to the bound of a mean."""


class SharedCentres(NamedTuple):
    """The merged centres in units of z; a cluster that is not in use weighs 0."""

    centres: Float[Tensor, "C K D"]
    weights: Float[Tensor, "C K"]


class CentreStatistics(NamedTuple):
    """One client's means in units of z, shares of its class, and images of each class."""

    centres: Float[Tensor, "C K D"]
    weights: Float[Tensor, "C K"]
    counts: Int[Tensor, " C"]


class _Sums(NamedTuple):
    sizes: Float[Tensor, "C K"]
    sums: Float[Tensor, "C K D"]
    distances: Float[Tensor, "C K"]
    counts: Int[Tensor, " C"]


def init_centres(cel: CelSettings, features: int, classes: int) -> SharedCentres | None:
    """Return centres that know no class, or None where each client has its own."""
    if cel.kind == "none" or cel.centres == "own":
        return None
    clusters = cel.used_clusters or DEFAULT_CLUSTERS
    return SharedCentres(torch.zeros(classes, clusters, features), torch.zeros(classes, clusters))


@final
@dataclass(frozen=True)
class AveragedCentres:
    """A loss around centres held at the shared ones; `inner` keeps a state like `Cluster`'s.

    Weights and spreads are the client's own under these centres. Classes that the shared centres
    do not know yet keep the client's own clusters.
    """

    inner: ConditionalEntropy
    shared: SharedCentres

    @torch.no_grad()
    def refresh(self, state: State | None, codes: Codes, generator: torch.Generator) -> State:
        """Return the client's weights and spreads around the shared centres."""
        known = self.shared.weights.sum(1) > 0
        found = _summed(codes, self.shared.centres, self.shared.weights > 0)
        counts = found.counts
        sizes = found.sizes.clamp_min(1)
        taken = {
            "centres": self.shared.centres.to(found.sums.dtype),
            "weights": found.sizes / counts.clamp_min(1)[:, None],
            "spreads": found.distances / sizes,
            "counts": counts,
        }
        if not ((counts > 0) & ~known).any():
            return taken
        own = self.inner.refresh(state, codes, generator)
        return own | {
            name: torch.where(known.view(-1, *[1] * (tensor.dim() - 1)), tensor, own[name])
            for name, tensor in taken.items()
        }

    def loss(
        self, state: State, z: Float[Tensor, "B D"], y: Int[Tensor, " B"], measure: bool = True
    ) -> Term:
        """Return the inner loss around the centres in `state`."""
        return self.inner.loss(state, z, y, measure)

    def step(self, state: State, z: Float[Tensor, "B D"], y: Int[Tensor, " B"]) -> State:
        """Return the inner loss's state after the batch."""
        return self.inner.step(state, z, y)


def _summed(codes: Codes, centres: Float[Tensor, "C K D"], usable: Bool[Tensor, "C K"]) -> _Sums:
    """Return sizes and sums of the members nearest to each centre, piece by piece.

    Members of classes without a usable centre are counted only. Added up in float64. DataError on
    a wrong label, DivergedError on codes that are not finite, SettingsError on another size.
    """
    classes, clusters, features = centres.shape
    known, slots = usable.any(1), classes * clusters
    sums = torch.zeros(slots, features, dtype=torch.float64)
    sizes, cost = torch.zeros_like(sums[:, 0]), torch.zeros_like(sums[:, 0])
    counts, dtype = torch.zeros(classes, dtype=torch.long), centres.dtype
    for z, y in codes():
        check_finite(z, y)
        if z.shape[1] != features:
            raise SettingsError(
                f"smashed data have {z.shape[1]} values, the averaged centres {features}: "
                "net.features changed; start the run anew"
            )
        counts += class_members(y, classes, z).counts.long()
        z, y, dtype = z[known[y]], y[known[y]], z.dtype
        gap, nearest = centre_distances(z, y, centres).masked_fill(~usable[y], torch.inf).min(1)
        slot = y * clusters + nearest
        sizes += slot.bincount(minlength=slots)
        cost.index_add_(0, slot, gap.double())
        sums.index_add_(0, slot, z.double())
    shape = (classes, clusters)
    return _Sums(
        sizes.view(shape).to(dtype),
        sums.view(centres.shape).to(dtype),
        cost.view(shape).to(dtype),
        counts,
    )


@torch.no_grad()
def summarise_centres(state: State, codes: Codes) -> CentreStatistics:
    """Return what a client tells: the means of its members of each cluster of its `state`."""
    found = _summed(codes, state["centres"], state["weights"] > 0)
    return CentreStatistics(
        found.sums / found.sizes.clamp_min(1)[..., None],
        found.sizes / found.counts.clamp_min(1)[:, None],
        found.counts,
    )


def find_statistics_fault(
    told: Arrays, shared: SharedCentres, held: int, bounded: bool
) -> str | None:
    """Say what is wrong with statistics as they arrived from a client of `held` images, or None.

    With `bounded`, smashed data have |z|^2 <= D, and so have their means.
    """
    shapes = [tuple(part.shape) for part in (*shared, shared.weights[:, 0])]
    if [array.shape for array in told] != shapes:
        return f"statistics of shapes {[array.shape for array in told]}, must be {shapes}"
    kinds = [np.float32, np.float32, np.int64]
    if [array.dtype for array in told] != kinds:
        return f"statistics of dtypes {[str(array.dtype) for array in told]}, must be {kinds}"
    centres, weights, counts = (torch.from_numpy(array) for array in told)
    if not (centres.isfinite().all() and weights.isfinite().all()):
        return "its statistics hold NaN or infinity"
    if weights.min() < 0 or weights.max() > 1:
        return f"weights in [{weights.min():.4g}, {weights.max():.4g}], must be in [0, 1]"
    if counts.min() < 0 or sum(counts.tolist()) != held:
        return f"class counts {counts.tolist()}, must be 0 or more and {held} together"
    if ((weights.sum(1) - (counts > 0).float()).abs() > SLACK).any():
        return f"weights of a class sum to {weights.sum(1).tolist()}, must be 1, or 0 if absent"
    longest = float(centres.double().square().mean(2).max())
    if bounded and longest > 1 + SLACK:
        return f"a centre's mean square is {longest:.4g}, at most 1 is possible"
    return None


def _points(
    told: Sequence[CentreStatistics],
) -> tuple[Float[Tensor, "M C K D"], Float[Tensor, "M C K"]]:
    """Return the clients' centres and how many images each stands for, in float64."""
    sizes = [one.weights.double() * one.counts[:, None] for one in told]
    return torch.stack([one.centres.double() for one in told]), torch.stack(sizes)


def client_spread(told: Sequence[CentreStatistics]) -> float:
    """Return the spread between clients, in units of z squared.

    sum_kc n_kc |m_kc - m_c|^2 / N, m_kc client k's mean of class c and m_c the clients' together:
    the part of a class's spread that no client sees in its own data.
    """
    centres, sizes = _points(told)
    counts = sizes.sum(2, keepdim=True)
    own = (centres * sizes[..., None]).sum(2) / counts.clamp_min(1)
    mean = (own * counts).sum(0) / counts.sum(0).clamp_min(1)
    return float(((own - mean).square().sum(2) * counts[..., 0]).sum() / counts.sum())


def merge_centres(
    last: SharedCentres, told: Sequence[CentreStatistics], clusters: int
) -> SharedCentres:
    """Return K-means clusters, in each class, of all clients' centres weighted by their images.

    Started from the last shared centres, less those that no client's centre is nearest to, plus the
    centres farthest from the others (Gonzalez 1985) up to `clusters`, or where that is 0 a quarter
    of the images, from 1 to 5. Depends on the order of `told` only by rounding. A class that nobody
    told stays as it was.
    """
    points, sizes = _points(told)
    centres, weights = (part.clone() for part in last)
    for label in range(len(centres)):
        held = sizes[:, label] > 0
        z, w = points[:, label][held], sizes[:, label][held]
        if not len(z):
            continue
        wanted = clusters or max(1, min(DEFAULT_CLUSTERS, round(float(w.sum())) // 4))
        start = last.centres[label][last.weights[label] > 0].double()
        found, share = _lloyd(z, w, _farthest(z, w, start, wanted))
        centres[label], weights[label] = 0, 0
        centres[label, : len(found)] = found.to(centres.dtype)
        weights[label, : len(found)] = (share / share.sum()).to(weights.dtype)
    return SharedCentres(centres, weights)


def _gaps(z: Float[Tensor, "P D"], centres: Float[Tensor, "k D"]) -> Float[Tensor, "P k"]:
    return torch.cdist(z, centres, compute_mode="donot_use_mm_for_euclid_dist")


def _farthest(
    z: Float[Tensor, "P D"], w: Float[Tensor, " P"], start: Float[Tensor, "k D"], wanted: int
) -> Float[Tensor, "K D"]:
    """Return the used centres of `start` and the farthest points, `wanted` if so many differ."""
    if not len(start):
        return _farthest(z, w, z[w.argmax()][None], wanted)
    used = _gaps(z, start).argmin(1).bincount(minlength=len(start)) > 0
    start = start[used]
    while len(start) < wanted:
        gap = _gaps(z, start).amin(1)
        if gap.max() == 0:
            break
        start = torch.cat([start, z[gap.argmax()][None]])
    return start


def _lloyd(
    z: Float[Tensor, "P D"], w: Float[Tensor, " P"], centres: Float[Tensor, "K D"]
) -> tuple[Float[Tensor, "k D"], Float[Tensor, " k"]]:
    """Return converged weighted means and their weights, without clusters that lost all points."""
    share = torch.zeros(len(centres), dtype=z.dtype)
    for _ in range(SWEEPS):
        slot = _gaps(z, centres).argmin(1)
        share = torch.zeros(len(centres), dtype=z.dtype).index_add(0, slot, w)
        sums = torch.zeros_like(centres).index_add(0, slot, z * w[:, None])
        moved = sums[share > 0] / share[share > 0][:, None]
        if torch.equal(moved, centres):
            break
        centres, share = moved, share[share > 0]
    return centres, share
