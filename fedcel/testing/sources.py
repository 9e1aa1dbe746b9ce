"""Contract of sources of images."""

import torch

from fedcel.data import DataSettings, Iid, Images, SourceData, load_splits, read_source, to_floats
from fedcel.plugins import require
from fedcel.tensors import digest_pixels
from fedcel.torch_state import make_twice

MIN_DISTINCT_SHARE = 0.5  # of the images, which must differ from all others
IMAGES_PER_TEST_IMAGE = 8  # and as many per validation or auxiliary image


def check_source(settings: DataSettings, *, learnable: bool = True) -> None:
    """Hold a source of images to its contract.

    Args:
        settings: The settings group `data` that names your source.
        learnable: False where the images' class means do not tell the labels apart at all.

    Raises:
        DataError: The source gives no images and labels that a run can take.
    """
    first, second = make_twice(lambda: read_source(settings.source))
    is_repeated = _list_bytes(first) == _list_bytes(second)
    require(is_repeated, "it must give the same images again, and the same bits")
    if "size" in type(settings.source).model_fields:
        sized = read_source(settings.source.model_copy(update={"size": 6})).train.x.shape[2:]
        require(sized == (6, 6), f"it must give images of data.size; of 6 they are {tuple(sized)}")
    distinct = len({digest_pixels(image) for image in first.train.x})
    line = f"{100 * MIN_DISTINCT_SHARE:g} % of the images must differ from all others"
    require(distinct >= MIN_DISTINCT_SHARE * len(first.train.x), f"{line}; {distinct} do")
    if learnable:
        _check_labels(first.train)
    if first.holders is not None:
        line = "holders must be two or more, numbered from 0, none of them without an image"
        counts = first.holders.bincount()
        require(len(counts) > 1 and bool(counts.all()), line)
    _check_splits(settings, first)


def _list_bytes(source: SourceData) -> list[bytes | None]:
    """Return all that a source gives."""
    tensors = (source.train.x, source.y, source.test and source.test.x, source.holders)
    return [None if tensor is None else tensor.numpy().tobytes() for tensor in tensors]


def _check_labels(images: Images) -> None:
    """The nearest class mean of one half is right of the other more often than a guess."""
    x, y = images
    classes, stream = int(y.max()) + 1, torch.Generator().manual_seed(1)
    flat, half = to_floats(x).flatten(1), torch.randperm(len(y), generator=stream) % 2 == 0
    groups = (flat[half & torch.eq(y, label)] for label in range(classes))
    far_away = torch.full_like(flat[0], 1e6)
    means = torch.stack([group.mean(0) if len(group) else far_away for group in groups])
    nearest = torch.cdist(flat[~half], means).argmin(1)
    accuracy = float(torch.eq(nearest, y[~half]).double().mean())
    guess = float(y.bincount().max()) / len(y)
    line = "labels must belong to the images: the nearest class mean must beat a guess"
    is_beaten = accuracy > min(1.2 * guess, (1 + guess) / 2)
    require(is_beaten, f"{line}; it is right in {accuracy:.3f}, a guess in {guess:.3f}")


def _check_splits(settings: DataSettings, source: SourceData) -> None:
    """Clients, validation, auxiliary and test images are there, and no two sets overlap."""
    few = max(2, len(source.train.y) // IMAGES_PER_TEST_IMAGE)
    sizes = {"validation": few, "auxiliary": few, "train": 0}
    tests = few if source.test is None else min(few, len(source.test.y))
    data = settings.model_copy(update={**sizes, "test": tests, "partition": Iid()})
    splits = load_splits(data, 2, 0)
    parts = [*splits.indices.clients, *splits.indices[1:]]
    require(all(len(part) > 0 for part in parts), "each part of a run must get images")
    positions = torch.cat(parts)
    is_apart = len(torch.unique(positions)) == len(positions)
    require(is_apart, "no image may be in two parts of a run")
