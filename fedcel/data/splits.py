"""All images of a run: each client's, the server's, the attacker's, the targets."""

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from fedcel.data.images import Images
from fedcel.data.partition import partition
from fedcel.data.sources import read
from fedcel.errors import DataError
from fedcel.seeding import generator, stream_seed
from fedcel.settings_groups import Data

Positions = Int[Tensor, " _"]


class Indices(NamedTuple):
    """Positions in the source: its training images, followed by its test images if it has any."""

    clients: tuple[Positions, ...]
    validation: Positions
    auxiliary: Positions
    test: Positions


@dataclass(frozen=True, eq=False)
class Splits:
    """Disjoint sets of images of one shape (C, H, W); treat the tensors as read-only."""

    shape: tuple[int, ...]
    classes: int
    clients: tuple[Images, ...]
    validation: Images
    auxiliary: Images
    test: Images
    indices: Indices
    dropped: int
    """Images left out because they equal a test image pixel by pixel."""

    @property
    def training(self) -> Images:
        """Return the training images of all clients together."""
        parts = self.clients
        return Images(torch.cat([part.x for part in parts]), torch.cat([part.y for part in parts]))


@lru_cache(maxsize=4)
def load(data: Data, clients: int, seed: int) -> Splits:
    """Return the images of a run; the same arguments give the same split.

    `data.seed` alone says who is test, validation and auxiliary image, so that runs of several
    training seeds share their targets and settings chosen on validation images never saw one;
    `seed` deals the rest out to the clients. Test images come from the source's own test part
    where it has one, else, like all others, from its training part. Whatever equals a test image
    is left out of the rest, so that no target of an attack was ever seen. The result is kept for
    the life of the process and shared by all callers: never write to its tensors. DataError when
    there are fewer images than asked for.
    """
    train, test, classes = read(data)
    stream = generator(data.seed, "data-split")
    pool = torch.randperm(len(train.y), generator=stream)
    if test is None:
        drawn, pool, chosen = pool[: data.test], pool[data.test :], take(train, pool[: data.test])
    else:
        own = torch.randperm(len(test.y), generator=stream)[: data.test]
        drawn, chosen = own + len(train.y), take(test, own)
    enough("data.test", data.test, len(drawn), "test")
    seen = equal_to_any(train, pool, chosen)
    left = pool[~seen]
    used = data.validation + data.auxiliary
    wanted = used + (data.train or 1)
    enough("data.validation + data.auxiliary + data.train", wanted, len(left), "other")
    validation, auxiliary = left[: data.validation], left[data.validation : used]
    dealt = left[used : used + data.train] if data.train else left[used:]
    parts = partition(train.y[dealt], clients, data, stream_seed(seed, "data-partition"))
    held = tuple(dealt[part] for part in parts)
    return Splits(
        shape=tuple(train.x.shape[1:]),
        classes=classes,
        clients=tuple(take(train, positions) for positions in held),
        validation=take(train, validation),
        auxiliary=take(train, auxiliary),
        test=chosen,
        indices=Indices(held, validation, auxiliary, drawn),
        dropped=int(seen.sum()),
    )


def take(images: Images, positions: Positions) -> Images:
    """Return a copy of the images at these positions."""
    return Images(images.x[positions], images.y[positions])


def enough(keys: str, wanted: int, found: int, kind: str) -> None:
    """Refuse to hand out more images than there are."""
    if found < wanted:
        raise DataError(
            f"{keys} asks for {wanted} images, the source has {found} {kind} images; "
            "lower it or take a larger source"
        )


def equal_to_any(images: Images, positions: Positions, targets: Images) -> Bool[Tensor, " n"]:
    """Return for each position whether that image equals one of the targets in every pixel."""
    known = {image.numpy().tobytes() for image in targets.x}
    return torch.tensor([images.x[p].numpy().tobytes() in known for p in positions.tolist()])
