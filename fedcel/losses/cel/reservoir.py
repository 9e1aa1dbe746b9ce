"""A uniform sample of each class, read piece by piece (Algorithm R: Vitter, ACM TOMS 1985)."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fedcel.errors import DataError, DivergedError
from fedcel.losses.cel.class_spread import check_labels
from fedcel.losses.protocol import FeatureReader


class Reservoir(NamedTuple):
    """A sample of each class of each of K clients; class c of client k is number k C + c.

    Attributes:
        z: Features (M, D), sorted by class.
        y: Class numbers (M,).
        counts: Examples of each class (K C,) of ALL that was read.
    """

    z: Float[Tensor, "M D"]
    y: Int[Tensor, " M"]
    counts: Int[Tensor, " KC"]


def sample_reservoir(
    read_features: FeatureReader, classes: int, size: int, generators: Sequence[torch.Generator]
) -> Reservoir:
    """Return the features of at most `size` examples of each class, all subsets equally likely.

    A class of at most `size` examples is returned whole, in its order, and draws nothing. Depends
    on the generators and the order of the examples, not on how they are cut into pieces. Memory: at
    most 3 min(N, K C size) D values, whatever N is, and the piece being read.

    Each example's place in the reservoir has a key, class number * size + position in its class.

    Args:
        read_features: Reads the features of all clients.
        classes: C.
        size: Examples of a class at most.
        generators: The only source of random numbers of each client.

    Returns:
        The sample.

    Raises:
        DataError: A client has no example, or a label is not one of the classes.
        DivergedError: Features are not finite.
    """
    total = len(generators) * classes
    counts = torch.zeros(total, dtype=torch.long)
    whole: list[tuple[Tensor, Tensor]] = []  # while every class fits in
    rows: _Rows | None = None
    for z, y, client in read_features():
        check_finite(z, y)
        check_labels(y, classes)
        label = client * classes + y
        before, counts = counts, counts + label.bincount(minlength=total)
        if rows is None and int(counts.max()) <= size:
            whole.append((z, label))
            continue
        if rows is None:
            rows = _Rows(total * size)
            earlier = torch.zeros_like(counts)
            for part, part_label in whole:
                rows.append(
                    part, part_label * size + earlier[part_label] + _rank_in_class(part_label)
                )
                earlier = earlier + part_label.bincount(minlength=total)
        arrival = before[label] + _rank_in_class(label)
        is_late = arrival >= size
        rows.append(z[~is_late], (label * size + arrival)[~is_late])
        if is_late.any():
            # The n-th example of a class replaces place floor(n u), if there is such a place.
            late = is_late.nonzero()[:, 0]
            draws = client[late].bincount(minlength=len(generators)).tolist()
            u = torch.cat(
                [
                    torch.rand(count, generator=stream, dtype=torch.float64)
                    for count, stream in zip(draws, generators, strict=True)
                ]
            )
            place = (u * (arrival[late] + 1)).long()
            accepted = place < size
            late, place = late[accepted], place[accepted]
            rows.replace(z, late, label[late] * size + place)
    if (counts.view(-1, classes).sum(1) == 0).any():
        raise DataError("a client has 0 examples, must have 1 or more; leave it out")
    if rows is not None:
        order = rows.keys.argsort()
        return Reservoir(rows.values.index_select(0, order), rows.keys[order] // size, counts)
    z, label = (torch.cat(parts) for parts in zip(*whole, strict=True))
    label, order = label.sort(stable=True)
    return Reservoir(z.index_select(0, order), label, counts)


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

    def append(self, z: Float[Tensor, "A D"], keys: Int[Tensor, " A"]) -> None:
        """Add rows."""
        used, end = len(self.keys), len(self.keys) + len(keys)
        if end > len(self.values) or not used:
            # Memory that is not written is not taken: four times as much costs nothing yet.
            grown = z.new_empty(min(max(4 * used, end), self.limit), z.shape[1])
            if used:
                grown[:used] = self.values[:used]
            self.values = grown
        self.values[used:end] = z
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
