"""Folders of CIFAR-10 or CIFAR-100 as published, in their binary version.

Format: Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009, data set page.
An image is one record: a byte for its label, or a coarse and a fine one, and 32 rows of 32 bytes
for red, for green and for blue.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch

from fedcel.data.images import Images, SourceParts
from fedcel.data.source import ColourSource
from fedcel.errors import DataError

SHAPE = (3, 32, 32)
PIXELS = 3 * 32 * 32
PICKLES = ("data_batch_1", "batches.meta", "train", "meta")
"""Files of the Python version, which are pickles."""


class Edition(NamedTuple):
    """One of the two data sets.

    Attributes:
        training: Names of the files of training images.
        test: Name of the file of test images.
        label_bytes: Bytes of a record before its pixels; the last of them is the label.
        classes: Number of classes.
        names: Name of the file that names the classes, a line each.
    """

    training: tuple[str, ...]
    test: str
    label_bytes: int
    classes: int
    names: str


CIFAR_10 = Edition(
    tuple(f"data_batch_{n}.bin" for n in range(1, 6)), "test_batch.bin", 1, 10, "batches.meta.txt"
)
CIFAR_100 = Edition(("train.bin",), "test.bin", 2, 100, "fine_label_names.txt")


class Cifar(ColourSource):
    """Folder of CIFAR's binary version: images (N, 3, 32, 32).

    Labels of CIFAR-100 are its hundred fine ones. Files of the Python version are pickles, and
    never read.
    """

    source: Literal["cifar"] = "cifar"

    def read(self) -> SourceParts:
        """Read training and test images."""
        edition = _find_edition(self.path)
        test = _read_files(Path(self.path), (edition.test,), edition)
        names = Path(self.path) / edition.names
        class_names = tuple(names.read_text("utf-8").split()) if names.is_file() else ()
        return self.read_training(())._replace(test=test, class_names=class_names)

    def read_training(self, classes: Sequence[str]) -> SourceParts:
        """Read the training images; no other file is looked at."""
        edition = _find_edition(self.path)
        return SourceParts(_read_files(Path(self.path), edition.training, edition))


def _find_edition(path: str) -> Edition:
    """Return which data set a folder holds; DataError when it holds neither."""
    folder = Path(path)
    if path == "none" or not folder.is_dir():
        raise DataError(
            f"data.path is {path!r}, which is no folder; unpack cifar-10-binary.tar.gz or "
            "cifar-100-binary.tar.gz and give the folder that holds its .bin files"
        )
    names = {path.name for path in folder.iterdir()}
    for edition in (CIFAR_10, CIFAR_100):
        if names & {*edition.training, edition.test}:
            return edition
    if pickles := [name for name in PICKLES if (folder / name).is_file()]:
        raise DataError(
            f"{folder} holds the Python version of CIFAR ({', '.join(pickles)}): these files are "
            "pickles, which can run code when they are read, so they are not; download the binary "
            "version, cifar-10-binary.tar.gz or cifar-100-binary.tar.gz"
        )
    raise DataError(
        f"{folder}: neither {CIFAR_10.training[0]} nor {CIFAR_100.training[0]} among "
        f"{sorted(names)[:8]}; set data.path to the folder that holds the .bin files"
    )


def _read_files(folder: Path, names: tuple[str, ...], edition: Edition) -> Images:
    """Return the images of several files, one after the other; DataError names a damaged one."""
    size = edition.label_bytes + PIXELS
    parts = []
    for name in names:
        path = folder / name
        try:
            raw = path.read_bytes()
        except OSError as error:
            raise DataError(f"{path} cannot be read ({error}); copy the file there") from error
        if not raw or len(raw) % size:
            raise DataError(
                f"{path} has {len(raw)} bytes, must be a multiple of {size}, the bytes of an image "
                f"of CIFAR-{edition.classes}; it is cut off or damaged, copy it anew"
            )
        parts.append(np.frombuffer(raw, dtype=np.uint8).reshape(-1, size))
    records = np.concatenate(parts)
    labels = records[:, edition.label_bytes - 1].astype(np.int64)
    if labels.max() >= edition.classes:
        raise DataError(
            f"{folder}: labels of {', '.join(names)} go up to {labels.max()}, must be below "
            f"{edition.classes}; the files are damaged or of another data set"
        )
    pixels = records[:, edition.label_bytes :].reshape(-1, *SHAPE)
    return Images(torch.tensor(pixels), torch.from_numpy(labels))
