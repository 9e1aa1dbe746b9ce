"""K-means inside each class, all classes at once (Lloyd 1982; k-means++: Arthur et al. 2007).

Data are sorted by class, and centred on their class's mean: nearest centres are chosen by
|mu|^2 - 2 z mu, one matrix product, which loses digits far from the origin. Every distance that is
returned is a sum of squared differences.

Own code beside scikit-learn's: that one knows no classes, and clients fit at every refresh. The
benchmark `tests.bench.clusters` has both.
"""

from math import log, sqrt
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

CHUNK = 512
"""Examples compared with centres at a time: few classes each, and they stay in the cache."""

BULK = 2**18
"""Values of differences held in memory at a time; more would not stay in the cache."""

SWEEPS = 50
"""Lloyd iterations at most; it stops earlier when no example changes its cluster."""

RESTARTS = 4
"""Cold starts of which each class keeps its best; a warm start runs once."""

SKETCH = 64
"""Values that a cold start looks at; wider data are projected at random for it."""


class Clusters(NamedTuple):
    """Centres (C, K, D), and for each example its slot c K + k (N,) and |z - centre|^2 (N,)."""

    centres: Float[Tensor, "C K D"]
    slot: Int[Tensor, " N"]
    distance: Float[Tensor, " N"]


def centre_scores(
    z: Float[Tensor, "N D"],
    y: Int[Tensor, " N"],
    centres: Float[Tensor, "C K D"],
    usable: Bool[Tensor, "C K"],
) -> Float[Tensor, "N K"]:
    """Return |z_i - mu_k|^2 - |z_i|^2 to the centres of the own class, infinite if not usable."""
    flat = centres.flatten(0, 1)
    offset = flat.square().sum(1).masked_fill(~usable.flatten(), torch.inf)
    every = torch.addmm(offset, z, flat.T, alpha=-2)
    return every.view(len(z), *usable.shape)[torch.arange(len(z), device=y.device), y]


def centre_distances(
    z: Float[Tensor, "N D"], y: Int[Tensor, " N"], centres: Float[Tensor, "C K D"]
) -> Float[Tensor, "N K"]:
    """Return |z_i - mu_k|^2 to the centres of the own class, from differences."""
    size = max(1, BULK // centres[0].numel())
    parts = [
        (some[:, None] - centres[own]).square_().sum(2)
        for some, own in zip(torch.split(z, size), torch.split(y, size), strict=True)
    ]
    return torch.cat(parts)


def make_clusters(
    z: Float[Tensor, "N D"], slot: Int[Tensor, " N"], centres: Float[Tensor, "C K D"]
) -> Clusters:
    """Return the clusters that have these centres and members."""
    flat, size = centres.flatten(0, 1), max(1, BULK // z.shape[1])
    parts = [
        (some - flat[own]).square_().sum(1)
        for some, own in zip(torch.split(z, size), torch.split(slot, size), strict=True)
    ]
    return Clusters(centres, slot, torch.cat(parts))


def seed_centres(
    z: Float[Tensor, "N D"],
    y: Int[Tensor, " N"],
    centres: Float[Tensor, "C K D"],
    kept: Bool[Tensor, "C K"],
    wanted: Bool[Tensor, "C K"],
    generator: torch.Generator,
) -> Float[Tensor, "C K D"]:
    """Return the kept centres and k-means++ draws for the other wanted slots, N above 0.

    Each is the best of 2 + ln K draws (greedy k-means++, Arthur and Vassilvitskii, SODA 2007).
    """
    if not (wanted & ~kept).any():
        return centres
    centres = centres.clone()
    gap = torch.where(kept[y], centre_distances(z, y, centres), torch.inf).amin(1)
    for k in range(centres.shape[1]):
        new = wanted[:, k] & ~kept[:, k]
        if not new.any():
            continue
        drawn = z[_draws(gap, y, len(centres), 2 + int(log(centres.shape[1])), generator)]
        reach = torch.minimum(gap[:, None], centre_distances(z, y, drawn))
        total = reach.new_zeros(drawn.shape[:2]).index_add(0, y, reach)
        best = total.argmin(1)
        centres[:, k] = torch.where(
            new[:, None], drawn[torch.arange(len(best)), best], centres[:, k]
        )
        gap = torch.where(new[y], reach.gather(1, best[y, None])[:, 0], gap)
    return centres


def _draws(
    gap: Float[Tensor, " N"],
    y: Int[Tensor, " N"],
    classes: int,
    trials: int,
    generator: torch.Generator,
) -> Int[Tensor, "C trials"]:
    """Return examples of each class, drawn in proportion to gap without replacement.

    A class of fewer examples repeats its last; an absent one gets some example of another.
    """
    chance = torch.where(gap.isinf(), 1.0, gap).clamp_min(torch.finfo(gap.dtype).tiny)
    # The first of exponential clocks to ring is a draw in proportion to their rates.
    clock = torch.empty_like(chance).exponential_(generator=generator) / chance
    found, first = torch.zeros(classes, trials, dtype=torch.long), 0
    for c, part in enumerate(torch.split(clock, y.bincount(minlength=classes).tolist())):
        some = part.topk(min(trials, len(part)), largest=False).indices
        if len(some):
            found[c] = first + some[torch.arange(trials).clamp_max(len(some) - 1)]
        first += len(part)
    return found


def run_lloyd(
    z: Float[Tensor, "N D"],
    y: Int[Tensor, " N"],
    centres: Float[Tensor, "C K D"],
    usable: Bool[Tensor, "C K"],
) -> Clusters:
    """Return converged clusters; a cluster that lost all its examples keeps its centre."""
    slot = torch.full_like(y, -1)
    for _ in range(SWEEPS):
        last, slot = slot, _nearest(z, y, centres, usable)
        if torch.equal(last, slot):
            break
        centres = _means(z, y, slot, centres)
    else:
        slot = _nearest(z, y, centres, usable)
    return make_clusters(z, slot, centres)


def _nearest(
    z: Float[Tensor, "N D"],
    y: Int[Tensor, " N"],
    centres: Float[Tensor, "C K D"],
    usable: Bool[Tensor, "C K"],
) -> Int[Tensor, " N"]:
    """Return the slot of the nearest usable centre."""
    parts = []
    for some, own in zip(torch.split(z, CHUNK), torch.split(y, CHUNK), strict=True):
        span = slice(int(own[0]), int(own[-1]) + 1)
        parts.append(centre_scores(some, own - span.start, centres[span], usable[span]).argmin(1))
    return y * centres.shape[1] + torch.cat(parts)


def _means(
    z: Float[Tensor, "N D"],
    y: Int[Tensor, " N"],
    slot: Int[Tensor, " N"],
    centres: Float[Tensor, "C K D"],
) -> Float[Tensor, "C K D"]:
    """Return the mean of each slot's examples, the old centre where it has none."""
    each = centres.shape[1]
    sums, counts = torch.zeros_like(centres), slot.bincount(minlength=centres[..., 0].numel())
    pieces = (torch.split(part, CHUNK) for part in (z, y, slot))
    for some, own, held in zip(*pieces, strict=True):
        span = slice(int(own[0]), int(own[-1]) + 1)
        slots = torch.arange(span.start * each, span.stop * each)
        one_hot = slots[:, None].eq(held).to(z.dtype)
        sums[span] += (one_hot @ some).view(-1, *centres.shape[1:])
    sizes = counts.view(centres.shape[:2])[..., None]
    return torch.where(sizes > 0, sums / sizes.clamp_min(1), centres)


def find_clusters(
    z: Float[Tensor, "N D"],
    y: Int[Tensor, " N"],
    start: Float[Tensor, "C K D"] | None,
    kept: Bool[Tensor, "C K"],
    wanted: Bool[Tensor, "C K"],
    outlier: float | None,
    generator: torch.Generator,
) -> Clusters:
    """Return the wanted clusters, from the kept centres of `start` or cold.

    With an `outlier` factor those that are `broad` are seeded anew and all refitted, once; a class
    takes that where its total distance is smaller.
    """
    if start is None:
        found = _cold(z, y, wanted, generator)
    else:
        found = run_lloyd(z, y, seed_centres(z, y, start, kept, wanted, generator), wanted)
    if outlier is None:
        return found
    sizes, spreads = tallies(found)
    far = broad(spreads, sizes > 0, outlier)
    if not far.any():
        return found
    again = seed_centres(z, y, found.centres, (sizes > 0) & ~far, wanted, generator)
    return _best([found, run_lloyd(z, y, again, wanted)], y)


def tallies(found: Clusters) -> tuple[Int[Tensor, "C K"], Float[Tensor, "C K"]]:
    """Return each cluster's size and mean distance, 0 where it is empty."""
    shape = found.centres.shape[:2]
    sizes = found.slot.bincount(minlength=shape.numel()).view(shape)
    sums = found.distance.new_zeros(shape.numel()).index_add(0, found.slot, found.distance)
    return sizes, sums.view(shape) / sizes.clamp_min(1)


def broad(
    spreads: Float[Tensor, "C K"], used: Bool[Tensor, "C K"], outlier: float
) -> Bool[Tensor, "C K"]:
    """Say which used clusters exceed `outlier` times the (lower) median of the class's used."""
    middle = torch.where(used, spreads, torch.nan).nanmedian(1, keepdim=True).values
    return used & (spreads > outlier * middle)


def _cold(
    z: Float[Tensor, "N D"],
    y: Int[Tensor, " N"],
    wanted: Bool[Tensor, "C K"],
    generator: torch.Generator,
) -> Clusters:
    """Return the best of some k-means++ starts, class by class, refined on all values.

    The starts are compared on a random projection to `SKETCH` values (Boutsidis et al., NeurIPS
    2010), which keeps distances roughly and makes them cheap.
    """
    narrow = z
    if z.shape[1] > SKETCH:
        turn = torch.randn(z.shape[1], SKETCH, generator=generator, dtype=z.dtype)
        narrow = z @ (turn / sqrt(SKETCH))
    none, empty = narrow.new_zeros(*wanted.shape, narrow.shape[1]), torch.zeros_like(wanted)
    runs = [
        run_lloyd(narrow, y, seed_centres(narrow, y, none, empty, wanted, generator), wanted)
        for _ in range(RESTARTS)
    ]
    found = _best(runs, y)
    start = _means(z, y, found.slot, z.new_zeros(*wanted.shape, z.shape[1]))
    held = found.slot.bincount(minlength=wanted.numel()).view(wanted.shape) > 0
    return run_lloyd(z, y, start, held)


def _best(runs: list[Clusters], y: Int[Tensor, " N"]) -> Clusters:
    """Return for each class its clusters of the smallest total distance."""
    classes = len(runs[0].centres)
    choice = torch.stack([y.bincount(run.distance, minlength=classes) for run in runs]).argmin(0)
    own, each = choice[y], torch.arange(len(y))
    return Clusters(
        torch.stack([run.centres for run in runs])[choice, torch.arange(classes)],
        torch.stack([run.slot for run in runs])[own, each],
        torch.stack([run.distance for run in runs])[own, each],
    )
