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


def draw_images(
    data: DataSettings, count: int, *, trained_on: Images | None = None
) -> tuple[Images, str]:
    """Read a source and draw images that an encoder is audited on.

    Images that it was trained on leak otherwise than others: those of a test part are taken, where
    the source has one.

    Args:
        data: The settings group `data`; `seed` draws.
        count: The most that are drawn.
        trained_on: Images that the encoder was trained on; none that equals one of them in every
            pixel is drawn. None: nobody knows.

    Returns:
        `count` images, or all where there are fewer, and a sentence on which they are.

    Raises:
        DataError: The source cannot be read.
    """
    source = read_source(data)
    images = source.train if source.test is None else source.test
    order = torch.randperm(len(images.y), generator=make_generator(data.seed, "audit"))
    note = "The images are of the source's test part."
    if trained_on is not None:
        training_bytes = {image.numpy().tobytes() for image in trained_on.x}
        order = order[[images.x[k].numpy().tobytes() not in training_bytes for k in order.tolist()]]
        note = "None of the images was trained on."
    elif source.test is None:
        note = (
            "The source has no test part: of images that the encoder was trained on it may leak "
            "less than of others."
        )
    return Images(images.x[order[:count]], images.y[order[:count]]), note
