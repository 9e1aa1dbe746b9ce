"""All images of a run: each client's, the server's, the attacker's, the targets."""

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from fedcel.data.images import Images, Labels
from fedcel.data.node_data import Own, load_node_images
from fedcel.data.partition import partition_examples
from fedcel.data.sources import SourceData, read_source
from fedcel.errors import DataError
from fedcel.seeding import make_generator, stream_seed
from fedcel.settings import DataSettings

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
def load_splits(data: DataSettings, clients: int, seed: int) -> Splits:
    """Load the images of a run and deal them out; the same arguments give the same split.

    `data.seed` alone says who is test, validation and auxiliary image, so that runs of several
    training seeds share their targets and settings chosen on validation images never saw one;
    `seed` deals the rest out to the clients. Test images come from the source's own test part
    where it has one, else, like all others, from its training part. Whatever equals a test image
    is left out of the rest, so that no target of an attack was ever seen. The result is kept for
    the life of the process and shared by all callers: never write to its tensors.

    With `data.held-out-classes` the attacker knows other classes than the targets' (other people,
    where classes are people): auxiliary are all images of classes that `data.seed` draws, of both
    parts. Both kinds of classes are numbered from 0, so a label of an auxiliary image says which
    are alike, not which class of the net it is. Test images, then validation images, then those of
    `data.train` are as many of each remaining class as come out even.

    A node with images of its own has no others: with `Own`, everyone else's are empty.

    Args:
        data: Source, partition and how many images each part takes.
        clients: Number of clients to deal the training images to.
        seed: Of the deal.

    Returns:
        Each client's images, and those of test, validation and the attacker.

    Raises:
        DataError: There are fewer images than asked for.
    """
    if isinstance(data, Own):
        return load_node_splits(data, clients)
    source, strange = hold_out_classes(read_source(data), data)
    places, dropped = assign_roles(source, strange, data)
    dealt, holders = places.clients[0], source.holders
    whose = None if holders is None else holders[dealt]
    parts = partition_examples(
        source.train.y[dealt], clients, data, stream_seed(seed, "data-partition"), whose
    )
    indices = places._replace(clients=tuple(dealt[part] for part in parts))
    return Splits(
        shape=tuple(source.train.x.shape[1:]),
        classes=source.classes,
        clients=tuple(take_images(source, positions) for positions in indices.clients),
        validation=take_images(source, indices.validation),
        auxiliary=take_images(source, indices.auxiliary),
        test=take_images(source, indices.test),
        indices=indices,
        dropped=dropped,
    )


def load_node_splits(data: Own, clients: int) -> Splits:
    """Return the splits of a node with one holder's images; DataError as `load_node_images`."""
    held = load_node_images(data)
    none, nowhere = Images(held.x[:0], held.y[:0]), torch.arange(0)
    return Splits(
        shape=data.shape,
        classes=data.classes,
        clients=tuple(held if client == data.holder else none for client in range(clients)),
        validation=none,
        auxiliary=none,
        test=none,
        indices=Indices((), nowhere, nowhere, nowhere),
        dropped=0,
    )


def hold_out_classes(
    source: SourceData, data: DataSettings
) -> tuple[SourceData, Bool[Tensor, " N"]]:
    """Return a source with its labels numbered anew, and which images are of held-out classes.

    DataError when fewer than two classes or fewer than are held out would be left.
    """
    held, most = data.held_out_classes, min(source.classes // 2, source.classes - 2)
    if held > most:
        raise DataError(
            f"data.held-out-classes is {held}, must be in 0..{most}: of {source.classes} classes "
            "two or more, and no fewer than are held out, are left for the net; lower it"
        )
    stream, out = make_generator(data.seed, "held-out-classes"), torch.zeros(source.classes).bool()
    out[torch.randperm(source.classes, generator=stream)[:held]] = True
    number = torch.where(out, out.cumsum(0), (~out).cumsum(0)) - 1
    train, test = source.train, source.test
    renumbered = source._replace(
        train=train._replace(y=number[train.y]),
        test=None if test is None else test._replace(y=number[test.y]),
        classes=source.classes - held,
    )
    return renumbered, out[source.y]


def assign_roles(
    source: SourceData, strange: Bool[Tensor, " N"], data: DataSettings
) -> tuple[Indices, int]:
    """Return who is what, all clients as one, and how many images equal a test image.

    DataError when there are fewer images than asked for.
    """
    stream, count = make_generator(data.seed, "data-split"), len(source.train.y)
    orders = [torch.randperm(count, generator=stream)]
    if source.test is not None:
        orders.append(torch.randperm(len(source.test.y), generator=stream) + count)
    outside = torch.cat([order[strange[order]] for order in orders])
    if data.held_out_classes:
        orders = [stratified_order(source.y, order[~strange[order]]) for order in orders]
    drawn = orders[-1][: data.test]
    check_count("data.test", data.test, len(drawn), "test")
    pool = orders[0] if source.test is not None else orders[0][data.test :]
    seen = match_targets(source, torch.cat([pool, outside]), take_images(source, drawn))
    left, outside = pool[~seen[: len(pool)]], outside[~seen[len(pool) :]]
    keys, used = "data.validation + data.train", data.validation
    if not data.held_out_classes:
        keys, used = "data.validation + data.auxiliary + data.train", used + data.auxiliary
    check_count(keys, used + (data.train or 1), len(left), "other")
    validation, auxiliary = left[: data.validation], left[data.validation : used]
    dealt = left[used : used + data.train] if data.train else left[used:]
    known = outside if data.held_out_classes else auxiliary
    return Indices((dealt,), validation, known, drawn), int(seen.sum())


def stratified_order(y: Labels, positions: Positions) -> Positions:
    """Return positions so that first comes one of each class, then the second of each, and so on.

    Within a class, and among the classes of one turn, the order stays.
    """
    turn = torch.empty_like(positions)
    own = y[positions]
    for label in range(int(y.max()) + 1):
        turn[own == label] = torch.arange(int((own == label).sum()))
    return positions[turn.argsort(stable=True)]


def take_images(source: SourceData, positions: Positions) -> Images:
    """Return a copy of the images at these positions, those of the training part first."""
    count = len(source.train.y)
    inside = positions[positions < count]
    found = Images(source.train.x[inside], source.train.y[inside])
    if source.test is None or len(inside) == len(positions):
        return found
    other = positions[positions >= count] - count
    return Images(
        torch.cat([found.x, source.test.x[other]]), torch.cat([found.y, source.test.y[other]])
    )


def check_count(keys: str, wanted: int, found: int, kind: str) -> None:
    """Refuse to hand out more images than there are."""
    if found < wanted:
        raise DataError(
            f"{keys} asks for {wanted} images, the source has {found} {kind} images; "
            "lower it or take a larger source"
        )


def match_targets(source: SourceData, positions: Positions, targets: Images) -> Bool[Tensor, " n"]:
    """Return for each position whether that image equals one of the targets in every pixel."""
    known = {image.numpy().tobytes() for image in targets.x}
    count = len(source.train.y)
    found = []
    for p in positions.tolist():
        image = source.train.x[p] if source.test is None or p < count else source.test.x[p - count]
        found.append(image.numpy().tobytes() in known)
    return torch.tensor(found, dtype=torch.bool)
