"""A uniform sample of each class, read batch by batch (Algorithm R: Vitter, ACM TOMS 1985)."""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fedcel.errors import DataError, DivergedError
from fedcel.losses.cel.class_spread import class_members
from fedcel.losses.cel.protocol import FeatureBatches


class Reservoir(NamedTuple):
    """Features z (M, D) sorted by class, labels (M,); `counts` (C,) of ALL that was read."""

    z: Float[Tensor, "M D"]
    y: Int[Tensor, " M"]
    counts: Int[Tensor, " C"]


def sample_reservoir(
    batches: FeatureBatches, classes: int, size: int, generator: torch.Generator
) -> Reservoir:
    """Return the features of at most `size` examples of each class, all subsets equally likely.

    A class of at most `size` examples is returned whole, in its order, and draws nothing. Depends
    on the generator and the order of the examples, not on how they are cut into batches. Memory:
    at most 3 min(N, C size) D values, whatever N is, and the batch being read.

    Each example's place in the reservoir has a key, label * size + position in its class.

    DataError when there is no example or a label is not one of the classes; DivergedError when
    features are not finite.
    """
    rows, keys = torch.empty(0, 0), torch.empty(0, dtype=torch.long)
    counts = torch.zeros(classes, dtype=torch.long)
    for z, y in batches():
        check_finite(z, y)
        batch_counts = class_members(y, classes, z).counts.long()
        arrival = counts[y] + _rank_in_class(y)
        counts = counts + batch_counts
        is_late = arrival >= size
        early = (~is_late).nonzero()[:, 0]
        rows = _append_rows(rows, len(keys), z, early, max_rows=classes * size)
        keys = torch.cat([keys, (y * size + arrival)[early]])
        if is_late.any():
            # The n-th example of a class replaces place floor(n u), if there is such a place.
            late = is_late.nonzero()[:, 0]
            u = torch.rand(len(late), generator=generator, dtype=torch.float64)
            place = (u * (arrival[late] + 1)).long()
            accepted = place < size
            late, place = late[accepted], place[accepted]
            _replace_rows(rows, keys, z, late, target_keys=y[late] * size + place)
    if not len(keys):
        raise DataError("a client has 0 examples, must have 1 or more; leave it out")
    order = keys.argsort()
    return Reservoir(rows.index_select(0, order), keys[order] // size, counts)


def check_finite(z: Float[Tensor, "B D"], y: Int[Tensor, " B"]) -> None:
    """Raise DivergedError unless the length of each feature vector is a finite number."""
    wrong = ~torch.linalg.vector_norm(z, dim=1).isfinite()
    if wrong.any():
        raise DivergedError(
            f"class {int(y[wrong][0])}: features of {int(wrong.sum())} of {len(y)} examples "
            "are nan or inf, must be finite: the encoder ran away; lower local.rate"
        )


def _rank_in_class(y: Int[Tensor, " B"]) -> Int[Tensor, " B"]:
    """Return how many examples of the same class come before each."""
    order = y.argsort(stable=True)
    counts = y.bincount()
    first = counts.cumsum(0) - counts
    return torch.empty_like(y).scatter(0, order, torch.arange(len(y)) - first[y[order]])


def _append_rows(
    rows: Float[Tensor, "R E"],
    used: int,
    z: Float[Tensor, "B D"],
    chosen: Int[Tensor, " A"],
    *,
    max_rows: int,
) -> Float[Tensor, "S D"]:
    """Return rows with the chosen ones of z after the first `used`; a full one grows."""
    end = used + len(chosen)
    if end > len(rows) or not used:
        # Memory that is not written is not taken: room for four times as much costs nothing yet.
        grown = z.new_empty(min(max(4 * used, end), max_rows), z.shape[1])
        if used:
            grown[:used] = rows[:used]
        rows = grown
    torch.index_select(z, 0, chosen, out=rows[used:end])
    return rows


def _replace_rows(
    rows: Float[Tensor, "R D"],
    keys: Int[Tensor, " M"],
    z: Float[Tensor, "B D"],
    chosen: Int[Tensor, " T"],
    *,
    target_keys: Int[Tensor, " T"],
) -> None:
    """Overwrite the row of each target key by the chosen one of z; of several the last stays."""
    target_keys, order = target_keys.sort(stable=True)
    is_last = torch.ones_like(target_keys, dtype=torch.bool)
    is_last[:-1] = target_keys[1:] != target_keys[:-1]
    sorted_keys, places = keys.sort()
    targets = places[torch.searchsorted(sorted_keys, target_keys[is_last])]
    rows.index_copy_(0, targets, z.index_select(0, chosen[order[is_last]]))
