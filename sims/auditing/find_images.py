"""Source of images behind a path or name."""

import os
import re
from pathlib import Path

import torch

from fedcel.data import (
    Images,
    Source,
    find_folder_source,
    match_pixels,
    read_cached,
    to_floats,
)
from fedcel.errors import DataError, replace_unwritable
from fedcel.torch_state import make_generator

RESIZED_AT_ONCE = 256
"""Images that are brought to size together."""

IMPORT_STRING = re.compile(r"[\w.]{2,}:\w+")
"""Name of an object; a single letter before the colon is a drive, and leads a path."""


def find_source(reference: str) -> tuple[str, str]:
    """Find `data.source` and `data.path` that read a path or name; DataError where nothing does.

    A path is a folder of class folders, a folder of MNIST-format files, an npz file, or a folder or
    file of a Hugging Face data set.
    """
    if reference != replace_unwritable(reference):
        raise DataError(
            f"{reference!r} must be of characters that UTF-8 has; rename the file or folder"
        )
    path = Path(reference)
    if os.path.isfile(path):  # of a name too long, pathlib raises
        kinds = {".npz": "npz", ".parquet": "huggingface", ".arrow": "huggingface"}
        if path.suffix.lower() in kinds:
            return kinds[path.suffix.lower()], str(path)
        raise DataError(
            f"{reference} is a file of none of the kinds {', '.join(kinds)}; name one of these, or "
            "the folder that holds the images"
        )
    if os.path.isdir(path):
        return find_folder_source(path), str(path)
    if reference in Source.kinds or IMPORT_STRING.fullmatch(reference):
        return reference, "none"
    if "://" in reference:
        raise DataError(
            f"{reference!r} is an address, and nothing is downloaded; fetch the images, and give "
            "their folder or file"
        )
    raise DataError(
        f"{reference!r} is no folder or file, or does not exist; give one with images, digits, or "
        "'package.module:object'"
    )


def draw_images(
    source: Source, count: int, *, seed: int = 0, trained_on: Images | None = None
) -> tuple[Images, str, tuple[str, ...]]:
    """Read a source and draw images that an encoder is audited on.

    Images that it was trained on leak otherwise than others: those of a test part are taken, where
    the source has one, and none that equals one of `trained_on` in every pixel.

    Returns:
        `count` images at most, sentences on which they are and what was done to them, and the names
        of the classes, none where the source has none.
    """
    # Which are alike is all that is asked.
    data = read_cached(source, is_numbered_anew=True, takes_few=True)
    images = data.train if data.test is None else data.test
    order = torch.randperm(len(images.y), generator=make_generator(seed, "audit"))
    note = "The images are of the source's test part."
    if trained_on is not None:
        candidates = (
            to_floats(image)
            for part in torch.split(order, RESIZED_AT_ONCE)
            for image in data.resize(Images(images.x[part], images.y[part])).x
        )
        order = order[~match_pixels(candidates, map(to_floats, trained_on.x))]
        note = "None of the images was trained on."
    elif data.test is None:
        note = (
            "The source has no test part: of images that the encoder was trained on it may leak "
            "less than of others."
        )
    if data.notes:
        note = f"{note} Of the source: {'; '.join(data.notes)}."
    chosen = order[:count]
    audited = data.resize(Images(images.x[chosen], images.y[chosen]))
    return audited._replace(x=to_floats(audited.x)), note, data.class_names
