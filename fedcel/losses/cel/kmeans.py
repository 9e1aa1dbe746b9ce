"""K-means inside each class, all classes at once (Lloyd 1982; k-means++: Arthur et al. 2007).

Shapes: N examples of D features, C classes, S slots for clusters in each class. The classes of
several clients are as many classes. A slot is numbered c S + s. Examples are sorted by class, and
centred on their class's mean: nearest centres are chosen by |mu|^2 - 2 z mu, one matrix product,
which loses digits far from the origin. Every distance that is returned is a sum of squared
differences.

Own code beside scikit-learn's KMeans, which fits one class at a time: a warm start, the refresh of
every local epoch, takes .2 ms here and 2.8 ms there for 150 x 64 in 10 classes, .5 and 3.0 ms for
1 000 x 64, and both end at the same inertia (one thread of a server CPU). `tests.bench.losses`
has both on large data.
"""

from collections.abc import Sequence
from math import log, sqrt
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from fedcel.losses.cel.conditional_entropy import select_rows
from fedcel.losses.protocol import State

CHUNK_EXAMPLES = 512
"""Examples compared with centres at a time: few classes each, and they stay in the cache."""

CHUNK_VALUES = 2**18
"""Values of differences held in memory at a time; more would not stay in the cache."""

MAX_ITERATIONS = 50
"""Lloyd iterations at most; it stops earlier when no example changes its cluster."""

OUTLIER_FACTOR = 3.0
"""Multiple of a class's median spread above which a cluster is too wide."""

COLD_STARTS = 4
"""Cold starts; each class keeps its best one. A warm start runs once."""

PROJECTED_FEATURES = 64
"""Values that a cold start looks at; wider data are projected at random for it."""


class ClusteringProblem(NamedTuple):
    """Examples to be clustered, and the streams of the draws.

    Attributes:
        z: Features (N, D), sorted by class, less their class's mean.
        y: Labels (N,).
        active: Which slots (C, S) are to hold a cluster.
        generators: The only source of random numbers of each client; all have as many classes.
    """

    z: Float[Tensor, "N D"]
    y: Int[Tensor, " N"]
    active: Bool[Tensor, "C S"]
    generators: Sequence[torch.Generator]

    @property
    def class_sizes(self) -> Int[Tensor, " C"]:
        """Examples of each class."""
        return self.y.bincount(minlength=len(self.active))

    def split_clients(self, values: Tensor) -> Sequence[Tensor]:
        """Split what is given for each example into the clients' parts."""
        sizes = self.class_sizes.view(len(self.generators), -1).sum(1)
        return torch.split(values, sizes.tolist())


class ClassClusters(NamedTuple):
    """Centres (C, S, D), and for each example its slot (N,) and |z - centre|^2 (N,)."""

    centres: Float[Tensor, "C S D"]
    slots: Int[Tensor, " N"]
    distances: Float[Tensor, " N"]


FittedClusters = tuple[ClassClusters, Float[Tensor, "C S"], State]
"""Result of a clustering: clusters, their weights (C, S) in the class, other state."""


class KMeans(NamedTuple):
    """Clustering of each class by K-means.

    Attributes:
        is_reseeded: Whether clusters that are too wide are seeded again.
        is_truncated: Whether they lose their far members.
    """

    is_reseeded: bool = False
    is_truncated: bool = False

    def fit(self, problem: ClusteringProblem, last: State | None) -> FittedClusters:
        """Find the clusters, from the last state where there is one; its centres are centred."""
        clusters = find_clusters(problem, last, OUTLIER_FACTOR if self.is_reseeded else None)
        sizes, _ = measure_clusters(clusters)
        weights = sizes.to(problem.z.dtype) / problem.class_sizes.clamp_min(1)[:, None]
        if not self.is_truncated:
            return clusters, weights, {}
        centres, limits, spreads = truncate_clusters(problem.z, clusters, OUTLIER_FACTOR)
        extras = {"limits": limits, "spreads": spreads}
        return clusters._replace(centres=centres), weights, extras

    def assign(
        self, state: State, z: Float[Tensor, "K B D"], y: Int[Tensor, "K B"]
    ) -> Int[Tensor, "K B"]:
        """Return the slot c S + s of each example's nearest centre."""
        weights, centres = state["weights"], state["centres"]
        # Centred first: the expanded squared distance loses precision far from 0.
        means = torch.einsum("...ck,...ckd->...cd", weights, centres)
        centred = z - select_rows(means, y)
        scores = centre_scores(centred, y, centres - means.unsqueeze(-2), weights > 0)
        return y * weights.shape[-1] + scores.argmin(-1)


def centre_scores(
    z: Float[Tensor, "*k N D"],
    y: Int[Tensor, "*k N"],
    centres: Float[Tensor, "*k C S D"],
    active: Bool[Tensor, "*k C S"],
) -> Float[Tensor, "*k N S"]:
    """Return |z_i - mu_s|^2 - |z_i|^2 to the centres of z_i's class, infinite if not active."""
    flat = centres.flatten(-3, -2)
    squared_norms = flat.square().sum(-1).masked_fill(~active.flatten(-2), torch.inf)
    product = torch.addmm if z.dim() == 2 else torch.baddbmm
    all_scores = product(squared_norms.unsqueeze(-2), z, flat.mT, alpha=-2)
    per_class = all_scores.view(y.numel(), *active.shape[-2:])
    scores: Tensor = per_class[torch.arange(y.numel(), device=y.device), y.flatten()]
    return scores.view(*y.shape, per_class.shape[-1])


def centre_distances(
    z: Float[Tensor, "N D"], y: Int[Tensor, " N"], centres: Float[Tensor, "C S D"]
) -> Float[Tensor, "N S"]:
    """Return |z_i - mu_s|^2 to the centres of z_i's class, from differences."""
    size = max(1, CHUNK_VALUES // centres[0].numel())
    chunks = zip(torch.split(z, size), torch.split(y, size), strict=True)
    return torch.cat([(zs[:, None] - centres[ys]).square_().sum(2) for zs, ys in chunks])


def make_clusters(
    z: Float[Tensor, "N D"], slots: Int[Tensor, " N"], centres: Float[Tensor, "C S D"]
) -> ClassClusters:
    """Return the clusters that have these centres and members."""
    # A slot is a class of one cluster, seen from the centres as a flat list.
    distances = centre_distances(z, slots, centres.flatten(0, 1)[:, None])[:, 0]
    return ClassClusters(centres, slots, distances)


def find_clusters(
    problem: ClusteringProblem, last: State | None, outlier: float | None
) -> ClassClusters:
    """Return clusters in the active slots, fitted from the last ones or cold.

    With an `outlier` factor those that are outliers are reseeded and all refitted, once; a class
    takes that where its total distance is smaller.
    """
    if problem.active.shape[1] == 1:  # around the class mean, which is 0
        centres = problem.z.new_zeros(*problem.active.shape, problem.z.shape[1])
        return ClassClusters(centres, problem.y, torch.linalg.vecdot(problem.z, problem.z))
    if last is None:
        clusters = _fit_cold(problem)
    else:
        is_retained = (last["weights"] > 0) & problem.active
        clusters = run_lloyd(problem, seed_centres(problem, last["centres"], is_retained))
    if outlier is None:
        return clusters
    sizes, spreads = measure_clusters(clusters)
    outliers = find_outliers(spreads, sizes > 0, outlier)
    if not outliers.any():
        return clusters
    seeds = seed_centres(problem, clusters.centres, (sizes > 0) & ~outliers)
    return _select_best([clusters, run_lloyd(problem, seeds)], problem.y)


def _fit_cold(problem: ClusteringProblem) -> ClassClusters:
    """Return the best of some k-means++ starts, class by class, refined on all values.

    The starts are compared on a random projection to `PROJECTED_FEATURES` values (Boutsidis et
    al., NeurIPS 2010), which keeps distances roughly and makes them cheap.
    """
    z, y, active, generators = problem
    narrow = problem
    features = z.shape[1]
    if features > PROJECTED_FEATURES:
        shape = features, PROJECTED_FEATURES
        parts = [
            part @ (torch.randn(shape, generator=stream, dtype=z.dtype) / sqrt(PROJECTED_FEATURES))
            for part, stream in zip(problem.split_clients(z), generators, strict=True)
        ]
        narrow = problem._replace(z=torch.cat(parts))
    blank = z.new_zeros(*active.shape, narrow.z.shape[1])
    none = torch.zeros_like(active)
    runs = [run_lloyd(narrow, seed_centres(narrow, blank, none)) for _ in range(COLD_STARTS)]
    slots = _select_best(runs, y).slots
    start = _slot_means(problem, slots, z.new_zeros(*active.shape, features))
    occupied = slots.bincount(minlength=active.numel()).view(active.shape) > 0
    return run_lloyd(problem._replace(active=occupied), start)


def seed_centres(
    problem: ClusteringProblem, centres: Float[Tensor, "C S D"], retained: Bool[Tensor, "C S"]
) -> Float[Tensor, "C S D"]:
    """Return the retained centres and k-means++ draws for the other active slots, N above 0.

    Each is the best of 2 + ln S draws (greedy k-means++, Arthur and Vassilvitskii, SODA 2007).
    """
    z, y, active, _ = problem
    if not (active & ~retained).any():
        return centres
    centres = centres.clone()
    classes, slots = active.shape
    nearest = torch.where(retained[y], centre_distances(z, y, centres), torch.inf).amin(1)
    for slot in range(slots):
        is_new = active[:, slot] & ~retained[:, slot]
        if not is_new.any():
            continue
        candidates = z[_draw_candidates(problem, nearest, is_new, 2 + int(log(slots)))]
        reach = torch.minimum(nearest[:, None], centre_distances(z, y, candidates))
        totals = reach.new_zeros(candidates.shape[:2]).index_add(0, y, reach)
        best = totals.argmin(1)
        chosen = candidates[torch.arange(classes), best]
        centres[:, slot] = torch.where(is_new[:, None], chosen, centres[:, slot])
        nearest = torch.where(is_new[y], reach.gather(1, best[y, None])[:, 0], nearest)
    return centres


def _draw_candidates(
    problem: ClusteringProblem,
    nearest: Float[Tensor, " N"],
    is_wanted: Bool[Tensor, " C"],
    trials: int,
) -> Int[Tensor, "C trials"]:
    """Return examples of each class, drawn in proportion to `nearest` without replacement.

    A class of fewer examples repeats its last; an absent one gets some example of another. A client
    none of whose classes wants any draws nothing.
    """
    classes = len(problem.active)
    rates = torch.where(nearest.isinf(), 1.0, nearest).clamp_min(torch.finfo(nearest.dtype).tiny)
    # The first of exponential clocks to ring is a draw in proportion to their rates.
    clocks = torch.ones_like(rates)
    are_wanted = is_wanted.view(len(problem.generators), -1).any(1).tolist()
    for part, stream, draws in zip(
        problem.split_clients(clocks), problem.generators, are_wanted, strict=True
    ):
        if draws:
            part.exponential_(generator=stream)
    clocks /= rates
    chosen = torch.zeros(classes, trials, dtype=torch.long)
    first = 0
    for c, times in enumerate(torch.split(clocks, problem.class_sizes.tolist())):
        earliest = times.topk(min(trials, len(times)), largest=False).indices
        if len(earliest):
            chosen[c] = first + earliest[torch.arange(trials).clamp_max(len(earliest) - 1)]
        first += len(times)
    return chosen


def run_lloyd(problem: ClusteringProblem, centres: Float[Tensor, "C S D"]) -> ClassClusters:
    """Return converged clusters; a cluster that lost all its examples keeps its centre."""
    slots = torch.full_like(problem.y, -1)
    for _ in range(MAX_ITERATIONS):
        last, slots = slots, _nearest_slots(problem, centres)
        if torch.equal(last, slots):
            break
        centres = _slot_means(problem, slots, centres)
    else:
        slots = _nearest_slots(problem, centres)
    return make_clusters(problem.z, slots, centres)


def _nearest_slots(
    problem: ClusteringProblem, centres: Float[Tensor, "C S D"]
) -> Int[Tensor, " N"]:
    z, y, active, _ = problem
    if centres.shape[1] == 1:
        return y
    parts = []
    for zs, ys in zip(torch.split(z, CHUNK_EXAMPLES), torch.split(y, CHUNK_EXAMPLES), strict=True):
        span = slice(int(ys[0]), int(ys[-1]) + 1)
        parts.append(centre_scores(zs, ys - span.start, centres[span], active[span]).argmin(1))
    return y * centres.shape[1] + torch.cat(parts)


def _slot_means(
    problem: ClusteringProblem, slots: Int[Tensor, " N"], centres: Float[Tensor, "C S D"]
) -> Float[Tensor, "C S D"]:
    """Return the mean of each slot's examples, the old centre where it has none."""
    z, y, active, _ = problem
    per_class = active.shape[1]
    sums = torch.zeros_like(centres)
    counts = slots.bincount(minlength=active.numel())
    chunks = (torch.split(part, CHUNK_EXAMPLES) for part in (z, y, slots))
    for zs, ys, chunk_slots in zip(*chunks, strict=True):
        span = slice(int(ys[0]), int(ys[-1]) + 1)
        span_slots = torch.arange(span.start * per_class, span.stop * per_class)
        one_hot = span_slots[:, None].eq(chunk_slots).to(z.dtype)
        sums[span] += (one_hot @ zs).view(-1, *centres.shape[1:])
    sizes = counts.view(active.shape)[..., None]
    return torch.where(sizes > 0, sums / sizes.clamp_min(1), centres)


def measure_clusters(clusters: ClassClusters) -> tuple[Int[Tensor, "C S"], Float[Tensor, "C S"]]:
    """Return each cluster's size and mean distance, 0 where it is empty."""
    shape = clusters.centres.shape[:2]
    sizes = clusters.slots.bincount(minlength=shape.numel()).view(shape)
    sums = clusters.distances.new_zeros(shape.numel())
    sums = sums.index_add(0, clusters.slots, clusters.distances)
    return sizes, sums.view(shape) / sizes.clamp_min(1)


def find_outliers(
    spreads: Float[Tensor, "C S"], used: Bool[Tensor, "C S"], outlier: float
) -> Bool[Tensor, "C S"]:
    """Mark the used clusters that exceed `outlier` times the (lower) median of the class's used."""
    median = torch.where(used, spreads, torch.nan).nanmedian(1, keepdim=True).values
    return used & (spreads > outlier * median)


def truncate_clusters(
    z: Float[Tensor, "N D"], clusters: ClassClusters, outlier: float
) -> tuple[Float[Tensor, "C S D"], Float[Tensor, "C S"], Float[Tensor, "C S"]]:
    """Leave out the far members of each outlier, and centre it on the others.

    A member is far if its squared distance is more than `outlier` times the (lower) median of the
    members'. Distances to the old centre decide which members the new one is the mean of; distances
    to the new one decide which members count. Members that are left out still
    count in their cluster's size. Returns centres, limits (the largest squared distance of a member
    that counts, 0 where all do), and spreads of the members that count.
    """
    sizes, spreads = measure_clusters(clusters)
    centres, limits = clusters.centres.clone(), torch.zeros_like(spreads)
    for c, s in find_outliers(spreads, sizes > 0, outlier).nonzero().tolist():
        is_member = clusters.slots == c * sizes.shape[1] + s
        members, distances = z[is_member], clusters.distances[is_member]
        centres[c, s] = members[distances <= outlier * distances.median()].mean(0)
        distances = (members - centres[c, s]).square().sum(1)
        # 0 would stand for no limit.
        limits[c, s] = (outlier * distances.median()).clamp_min(torch.finfo(z.dtype).tiny)
        spreads[c, s] = distances[distances <= limits[c, s]].mean()
    return centres, limits, spreads


def _select_best(runs: list[ClassClusters], y: Int[Tensor, " N"]) -> ClassClusters:
    """Return for each class its clusters of the smallest total distance."""
    classes = len(runs[0].centres)
    totals = torch.stack([y.bincount(run.distances, minlength=classes) for run in runs])
    best = totals.argmin(0)
    example_best = best[y]
    examples = torch.arange(len(y))
    return ClassClusters(
        torch.stack([run.centres for run in runs])[best, torch.arange(classes)],
        torch.stack([run.slots for run in runs])[example_best, examples],
        torch.stack([run.distances for run in runs])[example_best, examples],
    )
