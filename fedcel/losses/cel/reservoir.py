"""A uniform sample of each class, read piece by piece (Algorithm R: Vitter, ACM TOMS 1985)."""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fedcel.errors import DataError, DivergedError
from fedcel.losses.cel.class_spread import class_members
from fedcel.losses.cel.protocol import Codes


class Reservoir(NamedTuple):
    """Smashed data z (M, D) sorted by class, labels (M,); `counts` (C,) of ALL that was read."""

    z: Float[Tensor, "M D"]
    y: Int[Tensor, " M"]
    counts: Int[Tensor, " C"]


def sample_reservoir(
    codes: Codes, classes: int, size: int, generator: torch.Generator
) -> Reservoir:
    """Return at most `size` smashed data of each class, every subset of them equally likely.

    A class of at most `size` examples is returned whole, in its order, and draws nothing. Depends
    on the generator and the order of the examples, not on how they are cut into pieces. Memory: at
    most 3 min(N, C size) D values, whatever N is, and the piece being read.

    DataError when there is no example or a label is not one of the classes; DivergedError when
    smashed data are not finite.
    """
    kept, keys = torch.empty(0, 0), torch.empty(0, dtype=torch.long)
    seen = torch.zeros(classes, dtype=torch.long)
    for z, y in codes():
        check_finite(z, y)
        counts = class_members(y, classes, z).counts.long()
        arrival = seen[y] + _rank(y)
        seen = seen + counts
        late = arrival >= size
        kept = _appended(kept, len(keys), z, (~late).nonzero()[:, 0], classes * size)
        keys = torch.cat([keys, (y * size + arrival)[~late]])
        if late.any():
            draw = torch.rand(int(late.sum()), generator=generator, dtype=torch.float64)
            place = (draw * (arrival[late] + 1)).long()
            taken = place < size
            rows = late.nonzero()[:, 0][taken]
            _replace(kept, keys, z, rows, y[rows] * size + place[taken])
    if not len(keys):
        raise DataError("a client has 0 examples, must have 1 or more; leave it out")
    order = keys.argsort()
    return Reservoir(kept.index_select(0, order), keys[order] // size, seen)


def check_finite(z: Float[Tensor, "B D"], y: Int[Tensor, " B"]) -> None:
    """Raise DivergedError unless the length of each smashed data is a finite number."""
    wrong = ~torch.linalg.vector_norm(z, dim=1).isfinite()
    if wrong.any():
        raise DivergedError(
            f"class {int(y[wrong][0])}: smashed data of {int(wrong.sum())} of {len(y)} examples "
            "are nan or inf, must be finite: the encoder ran away; lower local.rate"
        )


def _rank(y: Int[Tensor, " B"]) -> Int[Tensor, " B"]:
    """Return how many examples of the same class come before each."""
    order = y.argsort(stable=True)
    counts = y.bincount()
    first = counts.cumsum(0) - counts
    return torch.empty_like(y).scatter(0, order, torch.arange(len(y)) - first[y[order]])


def _appended(
    kept: Float[Tensor, "R E"],
    used: int,
    z: Float[Tensor, "B D"],
    rows: Int[Tensor, " A"],
    most: int,
) -> Float[Tensor, "S D"]:
    """Return kept with those rows of z after the first `used`; a full one grows, to `most` rows."""
    end = used + len(rows)
    if end > len(kept) or not used:
        # Memory that is not written is not taken: room for four times as much costs nothing yet.
        grown = z.new_empty(min(max(4 * used, end), most), z.shape[1])
        if used:
            grown[:used] = kept[:used]
        kept = grown
    torch.index_select(z, 0, rows, out=kept[used:end])
    return kept


def _replace(
    kept: Float[Tensor, "R D"],
    keys: Int[Tensor, " M"],
    z: Float[Tensor, "B D"],
    rows: Int[Tensor, " T"],
    target: Int[Tensor, " T"],
) -> None:
    """Overwrite the place of each target key by that row of z; of several the last one stays."""
    target, order = target.sort(stable=True)
    last = torch.ones_like(target, dtype=torch.bool)
    last[:-1] = target[1:] != target[:-1]
    held, places = keys.sort()
    found = places[torch.searchsorted(held, target[last])]
    kept.index_copy_(0, found, z.index_select(0, rows[order[last]]))
