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
    rows = _Rows(classes * size)
    counts = torch.zeros(classes, dtype=torch.long)
    for z, y in batches():
        check_finite(z, y)
        batch_counts = class_members(y, classes, z).counts.long()
        arrival = counts[y] + _rank_in_class(y)
        counts = counts + batch_counts
        is_late = arrival >= size
        early = (~is_late).nonzero()[:, 0]
        rows.append(z, early, (y * size + arrival)[early])
        if is_late.any():
            # The n-th example of a class replaces place floor(n u), if there is such a place.
            late = is_late.nonzero()[:, 0]
            u = torch.rand(len(late), generator=generator, dtype=torch.float64)
            place = (u * (arrival[late] + 1)).long()
            accepted = place < size
            late, place = late[accepted], place[accepted]
            rows.replace(z, late, y[late] * size + place)
    if not len(rows.keys):
        raise DataError("a client has 0 examples, must have 1 or more; leave it out")
    order = rows.keys.argsort()
    return Reservoir(rows.values.index_select(0, order), rows.keys[order] // size, counts)


def check_finite(z: Float[Tensor, "*k B D"], y: Int[Tensor, "*k B"]) -> None:
    """Raise DivergedError unless the length of each feature vector is a finite number."""
    wrong = ~torch.linalg.vector_norm(z, dim=-1).isfinite()
    if wrong.any():
        raise DivergedError(
            f"class {int(y[wrong][0])}: features of {int(wrong.sum())} of {y.numel()} examples "
            "are nan or inf, must be finite: the encoder ran away; lower local.rate"
        )


def _rank_in_class(y: Int[Tensor, " B"]) -> Int[Tensor, " B"]:
    """Return how many examples of the same class come before each."""
    order = y.argsort(stable=True)
    counts = y.bincount()
    first = counts.cumsum(0) - counts
    return torch.empty_like(y).scatter(0, order, torch.arange(len(y)) - first[y[order]])


class _Rows:
    """Rows of features by key, in memory that grows up to a limit."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.values, self.keys = torch.empty(0, 0), torch.empty(0, dtype=torch.long)

    def append(
        self, z: Float[Tensor, "B D"], chosen: Int[Tensor, " A"], keys: Int[Tensor, " A"]
    ) -> None:
        """Add the chosen rows of z."""
        used, end = len(self.keys), len(self.keys) + len(chosen)
        if end > len(self.values) or not used:
            # Memory that is not written is not taken: four times as much costs nothing yet.
            grown = z.new_empty(min(max(4 * used, end), self.limit), z.shape[1])
            if used:
                grown[:used] = self.values[:used]
            self.values = grown
        torch.index_select(z, 0, chosen, out=self.values[used:end])
        self.keys = torch.cat([self.keys, keys])

    def replace(
        self, z: Float[Tensor, "B D"], chosen: Int[Tensor, " T"], keys: Int[Tensor, " T"]
    ) -> None:
        """Overwrite the row of each key by the chosen one of z; of several the last stays."""
        keys, order = keys.sort(stable=True)
        is_last = torch.ones_like(keys, dtype=torch.bool)
        is_last[:-1] = keys[1:] != keys[:-1]
        sorted_keys, places = self.keys.sort()
        targets = places[torch.searchsorted(sorted_keys, keys[is_last])]
        self.values.index_copy_(0, targets, z.index_select(0, chosen[order[is_last]]))
