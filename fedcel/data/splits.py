"""All images of a run: each client's, the server's, the attacker's, the targets."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch
from jaxtyping import Bool
from torch import Tensor

from fedcel.data.data_settings import OWN, DataSettings, SplitSizes
from fedcel.data.image_cache import read_cached
from fedcel.data.images import Images, Labels, match_pixels
from fedcel.data.node_data import NodeDataSettings, load_node_images
from fedcel.data.partition import ClientImages, ClientSlices, Positions
from fedcel.data.source import SourceData
from fedcel.errors import DataError
from fedcel.short_repr import show_shapes
from fedcel.tensors import rank_in_class, to_floats
from fedcel.torch_state import make_generator, stream_seed

SPLIT_SEED = 0
"""Seed of the split into test, validation and other images, whatever the run's seed."""


class SplitPositions(NamedTuple):
    """Positions in the source: its training images, followed by its test images if it has any."""

    clients: Sequence[Positions]
    validation: Positions
    auxiliary: Positions
    test: Positions


@show_shapes
@dataclass(frozen=True, eq=False)
class Splits:
    """All images of a run, in disjoint sets; treat the tensors as read-only.

    Attributes:
        shape: An image's shape, (C, H, W).
        classes: Number of classes of the net.
        clients: Training images of each client, taken when they are read; unsigned bytes where
            the source has bytes.
        validation: The server's images, on which settings are chosen.
        auxiliary: The attacker's own images.
        test: Images on which runs are scored, targets of the attacks among them.
        indices: Where each image is in the source.
        dropped: Number of images left out because they equal a test image pixel by pixel.
        notes: Lines of text that say what was done to the images; none where nothing was.
        class_names: Names of the classes; none where the source or the task has none.
    """

    shape: tuple[int, ...]
    classes: int
    clients: ClientImages
    validation: Images
    auxiliary: Images
    test: Images
    indices: SplitPositions
    dropped: int
    notes: tuple[str, ...] = ()
    class_names: tuple[str, ...] = ()

    @property
    def client_sizes(self) -> list[int]:
        """Number of training images of each client."""
        return self.clients.sizes.tolist()

    @property
    def training(self) -> Images:
        """The training images of all clients together, one client's after the other's."""
        return self.clients.take(slice(None))


@lru_cache(maxsize=4)
def load_splits(data: DataSettings, clients: int, seed: int) -> Splits:
    """Load the images of a run and deal them out; the same arguments give the same split.

    What is a test, validation or auxiliary image is the same whatever the seed, so that runs of
    several training seeds share their targets and settings chosen on validation images never saw
    one; `seed` deals the rest out to the clients. Test images come from the source's own test part
    where it has one, else, like all others, from its training part. Whatever equals a test image
    is left out of the rest, so that no target of an attack was ever seen. The result is kept for
    the life of the process and shared by all callers: never write to its tensors.

    With `data.held-out-classes` the attacker knows other classes than the targets' (other people,
    where classes are people): auxiliary are all images of some classes, drawn once, of both
    parts. Both kinds of classes are numbered from 0, so a label of an auxiliary image says
    which are alike, not which class of the net it is. Test images, then validation images, then
    those of `data.train` are as many of each remaining class as come out even.

    A node with images of its own has no others: with `NodeDataSettings`, everyone else's are empty.

    Args:
        data: Source, partition and how many images each part takes.
        clients: Number of clients to deal the training images to.
        seed: Seed of the deal.

    Returns:
        Each client's images, and those of test, validation and the attacker.

    Raises:
        DataError: There are fewer images than asked for.
    """
    if isinstance(data, NodeDataSettings):
        return _load_node_splits(data, clients)
    source, is_held_out = hold_out_classes(read_task_source(data), data)
    is_test = torch.arange(len(is_held_out)) >= len(source.train.y)
    test_count = None if source.test is None else int((is_test & ~is_held_out).sum())
    sizes = data.choose_sizes(int((~is_test & ~is_held_out).sum()), test_count)
    roles, dropped = assign_roles(source, is_held_out, data, sizes)
    training = roles.clients[0]
    parts = data.partition.deal(
        source.train.y[training],
        clients,
        stream_seed(seed, "data-partition"),
        holders=None if source.holders is None else source.holders[training],
    )
    dealt = ClientSlices(training[parts.whole], parts.sizes)
    indices = roles._replace(clients=dealt)
    validation, auxiliary, test = (
        make_floats(source.resize(take_images(source, positions)))
        for positions in (indices.validation, indices.auxiliary, indices.test)
    )
    images = ClientImages(source.train, dealt)
    if source.shape != source.train.x.shape[1:]:  # few are taken, and resized once
        whole = source.resize(take_images(source, dealt.whole))
        images = ClientImages(whole, ClientSlices(torch.arange(len(whole.y)), parts.sizes))
    return Splits(
        shape=source.shape,
        classes=source.classes,
        clients=images,
        validation=validation,
        auxiliary=auxiliary,
        test=test,
        indices=indices,
        dropped=dropped,
        notes=(*source.notes, *describe_roles(source, roles, dropped, data)),
        class_names=source.class_names,
    )


def read_task_source(data: DataSettings) -> SourceData:
    """Return a source with the labels of the task; DataError as `map_labels`."""
    source = read_cached(data.source, takes_few=bool(data.train))
    if data.labels == OWN:
        return source
    if data.held_out_classes:
        raise DataError(
            f"data.held-out-classes is {data.held_out_classes} and data.labels {data.labels!r}: "
            "classes are held out of the images' own only; leave one of them out"
        )
    where = f"data.source {data.source.kind_name!r}"
    return source._replace(
        train=data.map_images(source.train, where),
        test=None if source.test is None else data.map_images(source.test, where),
        classes=data.count_task_classes(source.classes),
        class_names=(),
    )


@lru_cache(maxsize=4)
def load_attributes(data: DataSettings, clients: int, seed: int) -> Labels | None:
    """Load the test images' own classes, which a coarser task leaves to be inferred.

    Args:
        data: Source and task.
        clients: As of `load_splits`.
        seed: As of `load_splits`.

    Returns:
        The classes, None where the task is these classes.

    Raises:
        DataError: As `load_splits`.
    """
    if data.labels == OWN or isinstance(data, NodeDataSettings):
        return None
    indices = load_splits(data, clients, seed).indices
    source = read_cached(data.source, takes_few=bool(data.train))
    return take_images(source, indices.test).y


def describe_roles(
    source: SourceData, roles: SplitPositions, dropped: int, data: DataSettings
) -> list[str]:
    """Describe the sizes of parts that the data decide, and the images that are left out."""
    lines = []
    if "auto" in (data.validation, data.auxiliary, data.test):
        lines.append(
            f"{len(roles.clients[0])} to train on, {len(roles.validation)} for validation, "
            f"{len(roles.auxiliary)} of the attacker, {len(roles.test)} test images"
        )
    if dropped:
        lines.append(f"{dropped} that equal a test image in every pixel are left out")
    trained = len(set(source.train.y[roles.clients[0]].tolist()))
    if trained < source.classes:
        untrained = source.classes - trained
        lines.append(f"of {untrained} of {source.classes} classes no image is left to train on")
    return lines


def _load_node_splits(data: NodeDataSettings, clients: int) -> Splits:
    """Return the splits of a node with one holder's images; DataError as `load_node_images`."""
    images, notes = load_node_images(data)
    sizes = torch.zeros(clients, dtype=torch.long)
    sizes[data.holder] = len(images.y)
    nowhere = torch.empty(0, dtype=torch.long)
    none = Images(torch.empty(0, *data.shape), nowhere)
    return Splits(
        shape=data.shape,
        classes=data.classes,
        clients=ClientImages(images, ClientSlices(torch.arange(len(images.y)), sizes)),
        validation=none,
        auxiliary=none,
        test=none,
        indices=SplitPositions((), nowhere, nowhere, nowhere),
        dropped=0,
        notes=notes,
    )


def hold_out_classes(
    source: SourceData, data: DataSettings
) -> tuple[SourceData, Bool[Tensor, " N"]]:
    """Return a source with renumbered labels, and which images are of held-out classes.

    DataError when fewer than two classes or fewer than are held out would be left.
    """
    count = data.held_out_classes
    limit = min(source.classes // 2, source.classes - 2)
    if count > limit:
        raise DataError(
            f"data.held-out-classes is {count}, must be in 0..{limit}: of {source.classes} classes "
            "two or more, and no fewer than are held out, are left for the net; lower it"
        )
    stream = make_generator(SPLIT_SEED, "held-out-classes")
    is_out = torch.zeros(source.classes).bool()
    is_out[torch.randperm(source.classes, generator=stream)[:count]] = True
    number = torch.where(is_out, is_out.cumsum(0), (~is_out).cumsum(0)) - 1
    train, test = source.train, source.test
    renumbered = source._replace(
        train=train._replace(y=number[train.y]),
        test=None if test is None else test._replace(y=number[test.y]),
        classes=source.classes - count,
        class_names=tuple(
            name for name, out in zip(source.class_names, is_out.tolist(), strict=False) if not out
        ),
    )
    return renumbered, is_out[source.y]


def assign_roles(
    source: SourceData, is_held_out: Bool[Tensor, " N"], data: DataSettings, sizes: SplitSizes
) -> tuple[SplitPositions, int]:
    """Return what each image is for, all clients as one, and how many images equal a test image.

    DataError when there are fewer images than asked for.
    """
    stream = make_generator(SPLIT_SEED, "data-split")
    train_count = len(source.train.y)
    orders = [torch.randperm(train_count, generator=stream)]
    if source.test is not None:
        orders.append(torch.randperm(len(source.test.y), generator=stream) + train_count)
    held_out = torch.cat([order[is_held_out[order]] for order in orders])
    if data.held_out_classes:
        orders = [stratified_order(source.y, order[~is_held_out[order]]) for order in orders]
    test = orders[-1][: sizes.test]
    check_count("data.test", sizes.test, len(test), "test")
    pool = orders[0] if source.test is not None else orders[0][sizes.test :]
    is_target = match_targets(source, torch.cat([pool, held_out]), take_images(source, test))
    pool = pool[~is_target[: len(pool)]]
    held_out = held_out[~is_target[len(is_target) - len(held_out) :]]
    keys = "data.validation + data.train"
    used = sizes.validation
    if not data.held_out_classes:
        keys = "data.validation + data.auxiliary + data.train"
        used = used + sizes.auxiliary
    check_count(keys, used + (data.train or 1), len(pool), "other")
    validation, auxiliary = pool[: sizes.validation], pool[sizes.validation : used]
    training = pool[used : used + data.train] if data.train else pool[used:]
    if data.held_out_classes:
        auxiliary = held_out
    return SplitPositions((training,), validation, auxiliary, test), int(is_target.sum())


def stratified_order(y: Labels, positions: Positions) -> Positions:
    """Return positions so that first comes one of each class, then the second of each, and so on.

    Within a class, and among the classes of one turn, the order stays.
    """
    return positions[rank_in_class(y[positions]).argsort(stable=True)]


def take_images(source: SourceData, positions: Positions) -> Images:
    """Return a copy of the images at these positions, those of the training part first."""
    train_count = len(source.train.y)
    train = positions[positions < train_count]
    images = Images(source.train.x[train], source.train.y[train])
    if source.test is None or len(train) == len(positions):
        return images
    test = positions[positions >= train_count] - train_count
    return Images(
        torch.cat([images.x, source.test.x[test]]), torch.cat([images.y, source.test.y[test]])
    )


def make_floats(images: Images) -> Images:
    """Return images as float32 in [0, 1]."""
    return images._replace(x=to_floats(images.x))


def check_count(keys: str, needed: int, available: int, kind: str) -> None:
    """Refuse to hand out more images than there are."""
    if available < needed:
        raise DataError(
            f"{keys} asks for {needed} images, the source has {available} {kind} images; "
            "lower it or take a larger source"
        )


def match_targets(source: SourceData, positions: Positions, targets: Images) -> Bool[Tensor, " n"]:
    """Return for each position whether that image equals one of the targets in every pixel."""
    parts = [source.train.x] if source.test is None else [source.train.x, source.test.x]
    count = len(source.train.y)
    places = ((0, p) if p < count else (1, p - count) for p in positions.tolist())
    return match_pixels((parts[part][place] for part, place in places), targets.x)
