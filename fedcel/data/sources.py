"""Where images come from: embedded digits, files, the Hub, or a user's own object."""

from collections.abc import Callable
from difflib import get_close_matches
from typing import NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from fedcel import plugins
from fedcel.data import idx, image_folder, npz
from fedcel.data.images import (
    Images,
    Labels,
    check_images,
    check_known,
    count_classes,
    fit_to_settings,
)
from fedcel.errors import DataError
from fedcel.settings import DataSettings

Parts = tuple[Images, Images | None]
Source = Callable[[DataSettings], Parts | tuple[Images, Images | None, Labels | None]]
"""What `data.source` names: the settings group in, training images and test images, if any, out.

A third item numbers the holder of each training image, for the partition `natural`.
"""


class SourceData(NamedTuple):
    """All images of a source, checked and of one shape; `holders` of the training images."""

    train: Images
    test: Images | None
    classes: int
    holders: Labels | None

    @property
    def y(self) -> Labels:
        """Return the labels of the training images, followed by those of the test images."""
        return self.train.y if self.test is None else torch.cat([self.train.y, self.test.y])


def load_embedded_digits(data: DataSettings) -> tuple[Images, None]:
    """Return the 1 797 handwritten digits that come with scikit-learn, (N, 1, 8, 8) in [0, 1].

    They are the test part of UCI's "Optical Recognition of Handwritten Digits", Alpaydin and
    Kaynak, 1998; there is no test set of its own here.
    """
    from sklearn.datasets import load_digits  # imported where it is needed: see `hugging_face`

    found = load_digits()
    x = torch.from_numpy((found.images[:, None] / 16).astype(np.float32))
    return Images(x, torch.from_numpy(found.target.astype(np.int64))), None


def load_hugging_face(data: DataSettings) -> tuple[Images, Images | None, Labels | None]:
    """Return what `fedcel.data.hugging_face` reads."""
    from fedcel.data import hugging_face as hub  # needs the extra `simulation`

    return hub.read_hugging_face(data)


SOURCES: dict[str, Source] = {
    "digits": load_embedded_digits,
    "idx": idx.read_idx,
    "npz": npz.read_npz,
    "image-folder": image_folder.read_image_folder,
    "huggingface": load_hugging_face,
}


def read_source(data: DataSettings) -> SourceData:
    """Return the checked images of `data.source`, as grey and as large as the settings ask for.

    DataError when the source is unknown or breaks its contract, PluginError when an import string
    leads nowhere.
    """
    train, test, holders = call_source(data)
    where = f"{data.source}: training part"
    check_images(train, where)
    train, classes = (
        train._replace(x=fit_to_settings(train.x, data, where)),
        count_classes(train.y, where),
    )
    if holders is not None and holders.shape != train.y.shape:
        raise DataError(
            f"{where}: holders are {tuple(holders.shape)}, must be {tuple(train.y.shape)}, one for "
            "each image; number the holders from 0"
        )
    if test is not None:
        where = f"{data.source}: test part"
        check_images(test, where)
        test = test._replace(x=fit_to_settings(test.x, data, where))
        check_known(test.y, classes, where)
        if test.x.shape[1:] != train.x.shape[1:]:
            raise DataError(
                f"{data.source}: test images are {tuple(test.x.shape[1:])}, must be "
                f"{tuple(train.x.shape[1:])} as the training images are; resize them"
            )
    return SourceData(train, test, classes, holders)


def call_source(data: DataSettings) -> tuple[Images, Images | None, Labels | None]:
    """Return what the source gives, before any look at the images."""
    if data.source not in SOURCES and ":" not in data.source:
        near = get_close_matches(data.source, SOURCES, 1, cutoff=0)
        raise DataError(
            f"data.source is {data.source!r}, must be {', '.join(SOURCES)} or "
            f"'package.module:object'; did you mean {near[0]!r}?"
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
    return _parts(source(data), data.source)


def _parts(found: object, source: str) -> tuple[Images, Images | None, Labels | None]:
    three = (*found, None)[:3] if isinstance(found, tuple) and len(found) in (2, 3) else ()
    fits = (
        len(three) == 3
        and isinstance(three[0], Images)
        and isinstance(three[1], Images | None)
        and isinstance(three[2], Tensor | None)
    )
    if not fits:
        raise DataError(
            f"data.source {source!r} returned {type(found).__name__}, must be a pair "
            "(fedcel.data.Images, fedcel.data.Images or None), or these and the holder of each "
            "training image"
        )
    return cast(tuple[Images, Images | None, Labels | None], three)
