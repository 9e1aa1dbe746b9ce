"""Class centres averaged over clients: what each sends, how the server merges it, how it is used.

This discloses to the server each client's number of images of every class, and the means of their
features within each cluster of a class, without noise.
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
from fedcel.losses.cel.kmeans import MAX_ITERATIONS, centre_distances
from fedcel.losses.cel.protocol import ConditionalEntropy, FeatureBatches, State, Term
from fedcel.losses.cel.reservoir import check_finite
from fedcel.settings import CelSettings
from fedcel.short_repr import summarise_record

ROUNDING = 1e-3
"""What rounding may add to sums of weights and to the bound of a mean."""


class SharedCentres(NamedTuple):
    """The centres that the server merged from all clients.

    Attributes:
        centres: (C, K, D) in units of z.
        weights: (C, K), each cluster's share of its class; 0 for a cluster that is not in use.
    """

    centres: Float[Tensor, "C K D"]
    weights: Float[Tensor, "C K"]

    def __repr__(self) -> str:
        """Show shapes in the place of numbers."""
        return summarise_record(self)


class CentreStatistics(NamedTuple):
    """What one client sends about its clusters.

    Attributes:
        centres: Means (C, K, D) in units of z.
        weights: Shares (C, K) of the client's images of the class.
        counts: The client's images of each class (C,).
    """

    centres: Float[Tensor, "C K D"]
    weights: Float[Tensor, "C K"]
    counts: Int[Tensor, " C"]

    def __repr__(self) -> str:
        """Show shapes in the place of numbers."""
        return summarise_record(self)


class _ClusterSums(NamedTuple):
    """Members of each cluster, the sums of their features and of their squared distances."""

    sizes: Float[Tensor, "C K"]
    features: Float[Tensor, "C K D"]
    distances: Float[Tensor, "C K"]
    counts: Int[Tensor, " C"]

    def weights(self) -> Float[Tensor, "C K"]:
        return self.sizes / self.counts.clamp_min(1)[:, None]


def init_centres(cel: CelSettings, features: int, classes: int) -> SharedCentres | None:
    """Return centres that know no class, or None where each client has its own."""
    if cel.kind == "none" or cel.centres == "own":
        return None
    clusters = cel.used_clusters or DEFAULT_CLUSTERS
    return SharedCentres(torch.zeros(classes, clusters, features), torch.zeros(classes, clusters))


@final
@dataclass(frozen=True)
class AveragedCentres:
    """A loss around centres held at those that all clients share.

    Weights and spreads are the client's own under these centres. Classes that the shared centres
    do not know yet keep the client's own clusters.

    Args:
        inner: The loss, whose state is like that of `Cluster`.
        shared: The centres that came with the round.
    """

    inner: ConditionalEntropy
    shared: SharedCentres

    def __repr__(self) -> str:
        """Show shapes in the place of numbers."""
        return summarise_record(self)

    @property
    def takes_stacks(self) -> bool:
        """Whether `loss` takes the batches of several clients at once, (K, B, D)."""
        return bool(getattr(self.inner, "takes_stacks", False))

    @torch.no_grad()
    def refresh(
        self, state: State | None, batches: FeatureBatches, generator: torch.Generator
    ) -> State:
        """Compute the client's weights and spreads; see `ConditionalEntropy.refresh`.

        Raises:
            DataError: A label is not one of the classes.
            DivergedError: Features are not finite.
            SettingsError: The shared centres are of another size than the features.
        """
        is_shared = self.shared.weights.sum(1) > 0
        sums = _sum_clusters(batches, self.shared.centres, self.shared.weights > 0)
        around_shared = {
            "centres": self.shared.centres.to(sums.features.dtype),
            "weights": sums.weights(),
            "spreads": sums.distances / sums.sizes.clamp_min(1),
            "counts": sums.counts,
        }
        if not ((sums.counts > 0) & ~is_shared).any():
            return around_shared
        local = self.inner.refresh(state, batches, generator)
        return local | {
            name: torch.where(is_shared.view(-1, *[1] * (tensor.dim() - 1)), tensor, local[name])
            for name, tensor in around_shared.items()
        }

    def loss(
        self, state: State, z: Float[Tensor, "*k B D"], y: Int[Tensor, "*k B"], measure: bool = True
    ) -> Term:
        """Compute the inner loss around the centres in `state`; see `ConditionalEntropy.loss`."""
        return self.inner.loss(state, z, y, measure)

    def step(self, state: State, z: Float[Tensor, "*k B D"], y: Int[Tensor, "*k B"]) -> State:
        """Return the inner loss's state after the batch; see `ConditionalEntropy.step`."""
        return self.inner.step(state, z, y)


def _sum_clusters(
    batches: FeatureBatches, centres: Float[Tensor, "C K D"], usable: Bool[Tensor, "C K"]
) -> _ClusterSums:
    """Return the sums over the members nearest to each usable centre, batch by batch.

    Members of classes without a usable centre are counted only. Added up in float64. DataError on
    a wrong label, DivergedError on features that are not finite, SettingsError on another size.
    """
    classes, clusters, features = centres.shape
    has_centre = usable.any(1)
    slots = classes * clusters
    sums = torch.zeros(slots, features, dtype=torch.float64)
    sizes, distances = torch.zeros_like(sums[:, 0]), torch.zeros_like(sums[:, 0])
    counts = torch.zeros(classes, dtype=torch.long)
    dtype = centres.dtype
    for z, y in batches():
        check_finite(z, y)
        if z.shape[1] != features:
            raise SettingsError(
                f"the encoder makes {z.shape[1]} features, the averaged centres have {features}: "
                "net.features changed; start the run anew"
            )
        counts += class_members(y, classes, z).counts.long()
        z, y, dtype = z[has_centre[y]], y[has_centre[y]], z.dtype
        nearest = centre_distances(z, y, centres).masked_fill(~usable[y], torch.inf).min(1)
        slot = y * clusters + nearest.indices
        sizes += slot.bincount(minlength=slots)
        distances.index_add_(0, slot, nearest.values.double())
        sums.index_add_(0, slot, z.double())
    return _ClusterSums(
        sizes.view(usable.shape).to(dtype),
        sums.view(centres.shape).to(dtype),
        distances.view(usable.shape).to(dtype),
        counts,
    )


@torch.no_grad()
def summarise_centres(state: State, batches: FeatureBatches) -> CentreStatistics:
    """Compute what a client sends to the server after a round.

    Args:
        state: The state of the loss, like that of `Cluster`.
        batches: Reads all the client's features and labels.

    Returns:
        The means of the client's members of each cluster of `state`.

    Raises:
        DivergedError: Features are not finite.
    """
    sums = _sum_clusters(batches, state["centres"], state["weights"] > 0)
    means = sums.features / sums.sizes.clamp_min(1)[..., None]
    return CentreStatistics(means, sums.weights(), sums.counts)


def find_statistics_fault(
    arrays: Sequence[NDArray[np.generic]], shared: SharedCentres, examples: int, bounded: bool
) -> str | None:
    """Say what is wrong with statistics that a client of `examples` images sent, or None.

    With `bounded`, features have |z|^2 <= D, and so have their means.
    """
    shapes = [tuple(part.shape) for part in (*shared, shared.weights[:, 0])]
    if [array.shape for array in arrays] != shapes:
        return f"statistics of shapes {[array.shape for array in arrays]}, must be {shapes}"
    dtypes = [np.float32, np.float32, np.int64]
    if [array.dtype for array in arrays] != dtypes:
        return f"statistics of dtypes {[str(array.dtype) for array in arrays]}, must be {dtypes}"
    centres, weights, counts = (torch.from_numpy(array) for array in arrays)
    if not (centres.isfinite().all() and weights.isfinite().all()):
        return "its statistics hold NaN or infinity"
    if weights.min() < 0 or weights.max() > 1:
        return f"weights in [{weights.min():.4g}, {weights.max():.4g}], must be in [0, 1]"
    if counts.min() < 0 or sum(counts.tolist()) != examples:
        return f"class counts {counts.tolist()}, must be 0 or more and {examples} together"
    if ((weights.sum(1) - (counts > 0).float()).abs() > ROUNDING).any():
        return f"weights of a class sum to {weights.sum(1).tolist()}, must be 1, or 0 if absent"
    longest = float(centres.double().square().mean(2).max())
    if bounded and longest > 1 + ROUNDING:
        return f"a centre's mean square is {longest:.4g}, at most 1 is possible"
    return None


def _stack_points(
    statistics: Sequence[CentreStatistics],
) -> tuple[Float[Tensor, "M C K D"], Float[Tensor, "M C K"]]:
    """Return the clients' centres and how many images each stands for, in float64."""
    sizes = [client.weights.double() * client.counts[:, None] for client in statistics]
    return torch.stack([client.centres.double() for client in statistics]), torch.stack(sizes)


def client_spread(statistics: Sequence[CentreStatistics]) -> float:
    """Return the spread between clients, in units of z squared.

    sum_kc n_kc |m_kc - m_c|^2 / N, m_kc client k's mean of class c and m_c the clients' together:
    the part of a class's spread that no client sees in its own data.
    """
    centres, sizes = _stack_points(statistics)
    counts = sizes.sum(2, keepdim=True)
    client_means = (centres * sizes[..., None]).sum(2) / counts.clamp_min(1)
    means = (client_means * counts).sum(0) / counts.sum(0).clamp_min(1)
    spread = ((client_means - means).square().sum(2) * counts[..., 0]).sum() / counts.sum()
    return float(spread)


def merge_centres(
    last: SharedCentres, statistics: Sequence[CentreStatistics], clusters: int
) -> SharedCentres:
    """Return K-means clusters, in each class, of all clients' centres weighted by their images.

    Started from the last shared centres, less those that no client's centre is nearest to, plus the
    centres farthest from the others (Gonzalez 1985) up to `clusters`, or where that is 0 a quarter
    of the images, from 1 to 5. Depends on the order of `statistics` only by rounding. A class that
    no client has stays as it was.
    """
    points, sizes = _stack_points(statistics)
    centres, weights = (part.clone() for part in last)
    for label in range(len(centres)):
        used = sizes[:, label] > 0
        z, w = points[:, label][used], sizes[:, label][used]
        if not len(z):
            continue
        count = clusters or max(1, min(DEFAULT_CLUSTERS, round(float(w.sum())) // 4))
        start = last.centres[label][last.weights[label] > 0].double()
        merged, totals = _run_weighted_lloyd(z, w, _choose_starts(z, w, start, count))
        centres[label], weights[label] = 0, 0
        centres[label, : len(merged)] = merged.to(centres.dtype)
        weights[label, : len(merged)] = (totals / totals.sum()).to(weights.dtype)
    return SharedCentres(centres, weights)


def _point_distances(
    z: Float[Tensor, "P D"], centres: Float[Tensor, "k D"]
) -> Float[Tensor, "P k"]:
    return torch.cdist(z, centres, compute_mode="donot_use_mm_for_euclid_dist")


def _choose_starts(
    z: Float[Tensor, "P D"], w: Float[Tensor, " P"], start: Float[Tensor, "k D"], count: int
) -> Float[Tensor, "K D"]:
    """Return the used centres of `start` and the farthest points, `count` if so many differ."""
    if not len(start):
        start = z[w.argmax()][None]
    used = _point_distances(z, start).argmin(1).bincount(minlength=len(start)) > 0
    start = start[used]
    while len(start) < count:
        nearest = _point_distances(z, start).amin(1)
        if nearest.max() == 0:
            break
        start = torch.cat([start, z[nearest.argmax()][None]])
    return start


def _run_weighted_lloyd(
    z: Float[Tensor, "P D"], w: Float[Tensor, " P"], centres: Float[Tensor, "K D"]
) -> tuple[Float[Tensor, "k D"], Float[Tensor, " k"]]:
    """Return converged weighted means and their weights, without clusters that lost all points.

    Own code beside scikit-learn's KMeans, which takes weights too and ends in the same centres to
    1e-15, but moves a centre that lost its points elsewhere: here a cluster that no client's centre
    is nearest to is out of use.
    """
    totals = torch.zeros(len(centres), dtype=z.dtype)
    for _ in range(MAX_ITERATIONS):
        slots = _point_distances(z, centres).argmin(1)
        totals = torch.zeros(len(centres), dtype=z.dtype).index_add(0, slots, w)
        sums = torch.zeros_like(centres).index_add(0, slots, z * w[:, None])
        moved = sums[totals > 0] / totals[totals > 0][:, None]
        if torch.equal(moved, centres):
            break
        centres, totals = moved, totals[totals > 0]
    return centres, totals
