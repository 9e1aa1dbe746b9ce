"""The sources of images by name, and a user's own object."""

from collections import Counter
from collections.abc import Callable
from difflib import get_close_matches
from typing import NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from fedcel import plugins
from fedcel.data import cifar, idx, image_folder, npz
from fedcel.data.data_settings import DataSettings
from fedcel.data.images import (
    Images,
    Labels,
    SourceParts,
    check_labels,
    count_classes,
    name_unreadable,
    prepare_images,
)
from fedcel.data.pictures import PictureTally, describe_pictures
from fedcel.errors import DataError, FedcelError
from fedcel.short_repr import summarise_record
from fedcel.tensors import number_labels

Source = Callable[
    [DataSettings],
    tuple[Images, Images | None] | tuple[Images, Images | None, Labels | None] | SourceParts,
]
"""What `data.source` names: the settings group in, training images and test images, if any, out.

A third item numbers the holder of each training image, for the partition `natural`.
"""


class SourceData(NamedTuple):
    """All images of a source, checked and of one shape.

    Attributes:
        train: The training images.
        test: The test images, or None where the source has no such part.
        classes: C; labels are 0..C-1.
        holders: Number of each training image's holder, or None.
        notes: Lines of text that say what was done to the images; none where nothing was.
    """

    train: Images
    test: Images | None
    classes: int
    holders: Labels | None
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """Show shapes in the place of numbers."""
        return summarise_record(self)

    @property
    def y(self) -> Labels:
        """The labels of the training images, followed by those of the test images."""
        return self.train.y if self.test is None else torch.cat([self.train.y, self.test.y])


def load_embedded_digits(data: DataSettings) -> tuple[Images, None]:
    """Return the 1 797 handwritten digits that come with scikit-learn, (N, 1, 8, 8) in [0, 1].

    They are the test part of UCI's "Optical Recognition of Handwritten Digits", Alpaydin and
    Kaynak, 1998; there is no test set of its own here.
    """
    from sklearn.datasets import load_digits  # a second of imports that other sources spare

    digits = load_digits()
    x = torch.from_numpy((digits.images[:, None] / 16).astype(np.float32))
    return Images(x, torch.from_numpy(digits.target.astype(np.int64))), None


DIABETES_BINS = 10
"""Bins of the number that `load_diabetes` gives, of equal width."""


def load_diabetes(data: DataSettings) -> tuple[Images, None]:
    """Return the 442 patients that come with scikit-learn, (N, 1, 1, 10) in [0, 1].

    Ten measurements of each, from their least to their largest value. The label is the bin of the
    progression of the disease after a year, from 25 to 346, in ten bins of equal width (Efron et
    al., Annals of Statistics 2004).
    """
    from sklearn import datasets  # a second of imports that other sources spare

    table = datasets.load_diabetes(scaled=False)
    x, target = torch.from_numpy(table.data), torch.from_numpy(table.target)
    low, high = x.aminmax(dim=0)
    share = (target - target.min()) / (target.max() - target.min())
    bins = (share * DIABETES_BINS).long().clamp_max(DIABETES_BINS - 1)
    return Images(((x - low) / (high - low)).float()[:, None, None], bins), None


def load_hugging_face(data: DataSettings) -> SourceParts:
    """Return what `fedcel.data.hugging_face` reads."""
    from fedcel.data import hugging_face  # needs the extra `simulation`

    return hugging_face.read_hugging_face(data)


SOURCES: dict[str, Source] = {
    "digits": load_embedded_digits,
    "diabetes": load_diabetes,
    "idx": idx.read_idx,
    "cifar": cifar.read_cifar,
    "npz": npz.read_npz,
    "image-folder": image_folder.read_image_folder,
    "huggingface": load_hugging_face,
}


def read_source(data: DataSettings, *, is_numbered_anew: bool = False) -> SourceData:
    """Read all images of a source and check them.

    Args:
        data: The settings group `data`, which names the source, its path, size and greyness.
        is_numbered_anew: Number the labels that occur 0..C-1, whatever they are: for those who ask
            only which images are alike. Else their numbers are the classes of a net, and a gap is
            refused.

    Returns:
        The images, as grey and as large as the settings ask for.

    Raises:
        DataError: The source is unknown, or what it gives is no set of labelled images.
        PluginError: An import string leads nowhere.
    """
    train, test, holders, notes = call_source(data)
    original_shape = tuple(train.x.shape[1:])
    source = data.source if data.path == "none" else f"{data.source} {data.path}"
    where = f"{source}: training part"
    train = prepare_images(train, data, where)
    if test is not None:
        test = prepare_images(test, data, f"{source}: test part")
    if is_numbered_anew:
        numbers = number_labels(*(part.y for part in (train, test) if part is not None))
        classes = count_classes(torch.cat(numbers), source)
        train, test = train._replace(y=numbers[0]), test and test._replace(y=numbers[-1])
    else:
        classes = count_classes(train.y, where)
    if holders is not None and holders.shape != train.y.shape:
        raise DataError(
            f"{where}: holders are {tuple(holders.shape)}, must be {tuple(train.y.shape)}, one for "
            "each image; number the holders from 0"
        )
    if test is not None:
        remedy = " as the training labels are; check that both parts belong together"
        check_labels(test.y, classes, f"{source}: test part", remedy)
        if test.x.shape[1:] != train.x.shape[1:]:
            raise DataError(
                f"{source}: test images are {tuple(test.x.shape[1:])}, must be "
                f"{tuple(train.x.shape[1:])} as the training images are; resize them"
            )
    count = len(train.y) + (0 if test is None else len(test.y))
    notes = (*notes, *describe_fit(original_shape, train, count, classes))
    return SourceData(train, test, classes, holders, notes)


def describe_fit(
    original_shape: tuple[int, ...], images: Images, count: int, classes: int
) -> list[str]:
    """Say what fitting images of one shape (C, H, W) to the settings did; nothing if nothing.

    `count` images of `classes` are meant, of which `images` are the training part.
    """
    channels, height, width = original_shape
    shape = tuple(images.x.shape[1:])
    changes = Counter({"colour": count} if channels > shape[0] else {})
    return describe_pictures(
        PictureTally((width, height), (width, height), changes), count, classes, shape
    )


def call_source(data: DataSettings) -> SourceParts:
    """Return what the source gives, before any look at the images."""
    if data.source not in SOURCES and ":" not in data.source:
        nearest = get_close_matches(data.source, SOURCES, 1, cutoff=0)
        raise DataError(
            f"data.source is {data.source!r}, must be {', '.join(SOURCES)} or "
            f"'package.module:object'; did you mean {nearest[0]!r}?"
        )
    unread = {
        "data.repository": data.repository,
        "data.label-column": data.label_column,
        "data.holder-column": data.holder_column,
    }
    for key, value in unread.items():
        if value != "none" and data.source in SOURCES and data.source != "huggingface":
            raise DataError(
                f"{key} is {value!r} and data.source {data.source!r}: only 'huggingface' reads it; "
                f"set data.source to 'huggingface' or {key} to 'none'"
            )
    source = SOURCES.get(data.source) or plugins.load_object(data.source)
    if not callable(source):
        raise DataError(
            f"data.source is {data.source!r}, which is {type(source).__name__} and cannot be "
            "called; name a function that takes the data settings"
        )
    if data.source in SOURCES:
        with name_unreadable(f"data.path {data.path!r}"):
            return _check_parts(source(data), data.source)
    try:
        answer = source(data)
    except FedcelError:
        raise
    except Exception as error:
        part = plugins.PartName("data.source", data.source, "SourceContract")
        raise DataError(part.describe_failure(error)) from error
    return _check_parts(answer, data.source)


def _check_parts(answer: object, source: str) -> SourceParts:
    """Return a source's answer with None for holders that it leaves out; DataError for others."""
    if isinstance(answer, SourceParts):
        return answer
    parts = (*answer, None)[:3] if isinstance(answer, tuple) and len(answer) in (2, 3) else ()
    if (
        len(parts) != 3
        or not isinstance(parts[0], Images)
        or not isinstance(parts[1], Images | None)
        or not isinstance(parts[2], Tensor | None)
    ):
        raise DataError(
            f"data.source {source!r} returned {type(answer).__name__}, must be a pair "
            "(fedcel.data.Images, fedcel.data.Images or None), or these and the holder of each "
            "training image"
        )
    return SourceParts(*cast(tuple[Images, Images | None, Labels | None], parts))
