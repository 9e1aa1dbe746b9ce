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
    most 5 min(N, K C size) D values, whatever N is, and the piece being read.

    Each example's place in the reservoir has a key, class number * size + position in its class.

    Raises:
        DataError: A client has no example, or a label is not one of the classes.
        DivergedError: Features are not finite.
    """
    total = len(generators) * classes
    counts = torch.zeros(total, dtype=torch.long)
    retained: list[
        tuple[Tensor, Tensor]
    ] = []  # examples and their keys; of a key the last one counts
    for z, y, client in read_features():
        check_finite(z, y)
        check_labels(y, classes)
        label = client * classes + y
        place = counts[label] + rank_in_class(label)
        counts = counts + label.bincount(minlength=total)
        is_late = place >= size
        if is_late.any():
            # The n-th example of a class replaces place floor(n u), if there is such a place.
            draws = client[is_late].bincount(minlength=len(generators)).tolist()
            u = torch.cat(
                [
                    torch.rand(count, generator=stream, dtype=torch.float64)
                    for count, stream in zip(draws, generators, strict=True)
                ]
            )
            place[is_late] = (u * (place[is_late] + 1)).long()
        keys, is_kept = label * size + place, place < size
        retained.append((z, keys) if is_kept.all() else (z[is_kept], keys[is_kept]))
        if sum(len(part) for _, part in retained) > 2 * total * size:
            retained = [_drop_replaced(retained)]
    if (counts.view(-1, classes).sum(1) == 0).any():
        raise DataError("a client has 0 examples, must have 1 or more; leave it out")
    z, keys = _drop_replaced(retained)
    return Reservoir(z, keys // size, counts)


def _drop_replaced(retained: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Return the last example of each key, and the keys, ascending."""
    z, keys = (torch.cat(parts) for parts in zip(*retained, strict=True))
    keys, order = keys.sort(stable=True)
    is_last = torch.ones_like(keys, dtype=torch.bool)
    is_last[:-1] = keys[1:] != keys[:-1]
    return z.index_select(0, order[is_last]), keys[is_last]


def check_finite(z: Float[Tensor, "*k B D"], y: Int[Tensor, "*k B"]) -> None:
    """Raise DivergedError unless the length of each feature vector is a finite number."""
    wrong = ~torch.linalg.vector_norm(z, dim=-1).isfinite()
    if wrong.any():
        raise DivergedError(
            f"class {int(y[wrong][0])}: features of {int(wrong.sum())} of {y.numel()} examples "
            "are nan or inf, must be finite: the encoder ran away; lower local.rate"
        )


def rank_in_class(y: Int[Tensor, " B"]) -> Int[Tensor, " B"]:
    """Return how many examples of the same class come before each."""
    order = y.argsort(stable=True)
    counts = y.bincount()
    first = counts.cumsum(0) - counts
    return torch.empty_like(y).scatter(0, order, torch.arange(len(y)) - first[y[order]])
