"""Where images come from: embedded digits, a folder, or a user's own object."""

from collections.abc import Callable
from difflib import get_close_matches
from typing import cast

import numpy as np
import torch
from sklearn.datasets import load_digits

from fedcel import plugins
from fedcel.data import idx
from fedcel.data.images import Images, check_images, check_known, count_classes
from fedcel.errors import DataError
from fedcel.settings_groups import Data

Source = Callable[[Data], tuple[Images, Images | None]]
"""What `data.source` names: the settings group in, training images and test images, if any, out."""


def digits(data: Data) -> tuple[Images, None]:
    """Return the 1 797 handwritten digits that come with scikit-learn, (N, 1, 8, 8) in [0, 1].

    They are the test part of UCI's "Optical Recognition of Handwritten Digits", Alpaydin and
    Kaynak, 1998; there is no test set of its own here.
    """
    found = load_digits()
    x = torch.from_numpy((found.images[:, None] / 16).astype(np.float32))
    return Images(x, torch.from_numpy(found.target.astype(np.int64))), None


SOURCES: dict[str, Source] = {"digits": digits, "idx": idx.read}


def read(data: Data) -> tuple[Images, Images | None, int]:
    """Return checked training images, test images or None, and the number of classes.

    DataError when the source is unknown or breaks its contract, PluginError when an import string
    leads nowhere.
    """
    if data.source not in SOURCES and ":" not in data.source:
        near = get_close_matches(data.source, SOURCES, 1, cutoff=0)
        raise DataError(
            f"data.source is {data.source!r}, must be {', '.join(SOURCES)} or "
            f"'package.module:object'; did you mean {near[0]!r}?"
        )
    source = SOURCES.get(data.source) or plugins.load(data.source)
    if not callable(source):
        raise DataError(
            f"data.source is {data.source!r}, which is {type(source).__name__} and cannot be "
            "called; name a function that takes the data settings"
        )
    train, test = _pair(source(data), data.source)
    check_images(train, f"{data.source}: training part")
    classes = count_classes(train.y, f"{data.source}: training part")
    if test is not None:
        check_images(test, f"{data.source}: test part")
        check_known(test.y, classes, f"{data.source}: test part")
        if test.x.shape[1:] != train.x.shape[1:]:
            raise DataError(
                f"{data.source}: test images are {tuple(test.x.shape[1:])}, must be "
                f"{tuple(train.x.shape[1:])} as the training images are; resize them"
            )
    return train, test, classes


def _pair(found: object, source: str) -> tuple[Images, Images | None]:
    fits = (
        isinstance(found, tuple)
        and len(found) == 2
        and isinstance(found[0], Images)
        and (found[1] is None or isinstance(found[1], Images))
    )
    if not fits:
        raise DataError(
            f"data.source {source!r} returned {type(found).__name__}, must be a pair "
            "(fedcel.data.Images, fedcel.data.Images or None)"
        )
    return cast(tuple[Images, Images | None], found)
