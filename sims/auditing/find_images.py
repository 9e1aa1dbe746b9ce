"""What source of images a path or name stands for."""

from pathlib import Path

import torch

from fedcel.data import SOURCES, Images, read_source
from fedcel.errors import DataError
from fedcel.seeding import make_generator
from fedcel.settings import DataSettings

FOLDER_MARKS = {
    "idx": ("train-images*idx3-ubyte*",),
    "cifar": ("data_batch_1.bin", "train.bin"),
    "huggingface": ("dataset_dict.json", "state.json", "*.parquet", "*.arrow"),
}
"""Files that say which source reads a folder; one without any is a folder of class folders."""


def find_source(reference: str) -> tuple[str, str]:
    """Find which source reads what a path or name stands for.

    Args:
        reference: A folder of class folders, a folder of MNIST-format files, an npz file, a folder
            or file of a Hugging Face data set, the name of a source, or `package.module:object`.

    Returns:
        `data.source` and `data.path`.

    Raises:
        DataError: Nothing reads it.
    """
    path = Path(reference)
    if path.is_file():
        kinds = {".npz": "npz", ".parquet": "huggingface", ".arrow": "huggingface"}
        if path.suffix in kinds:
            return kinds[path.suffix], str(path)
        raise DataError(f"{reference} is a file of none of the kinds {', '.join(kinds)}")
    if path.is_dir():
        for source, marks in FOLDER_MARKS.items():
            if any(any(path.glob(mark)) for mark in marks):
                return source, str(path)
        return "image-folder", str(path)
    if reference in SOURCES or ":" in reference:
        return reference, "none"
    raise DataError(
        f"{reference!r} is no folder, file or source of images; there are {', '.join(SOURCES)}, or "
        "name 'package.module:object'"
    )


def draw_images(data: DataSettings, count: int) -> Images:
    """Read a source and draw images that an encoder is audited on.

    Images that it was trained on leak otherwise than others: those of a test part are taken, where
    the source has one.

    Args:
        data: The settings group `data`; `seed` draws.
        count: The most that are drawn.

    Returns:
        `count` images, or all where there are fewer.

    Raises:
        DataError: The source cannot be read.
    """
    source = read_source(data)
    images = source.train if source.test is None else source.test
    order = torch.randperm(len(images.y), generator=make_generator(data.seed, "audit"))[:count]
    return Images(images.x[order], images.y[order])
