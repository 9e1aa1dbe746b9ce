"""A data holder's own images: all training images of its folder or file, and nothing else."""

import os
from collections.abc import Callable
from pathlib import Path

from pydantic import Field

from fedcel.data import cifar, idx, image_folder, npz
from fedcel.data.data_settings import DataSettings
from fedcel.data.images import Images, SourceParts, check_labels, name_unreadable, prepare_images
from fedcel.data.label_map import count_task_classes, map_images
from fedcel.data.sources import SOURCES, call_source, describe_fit
from fedcel.errors import DataError, escape_controls


class NodeDataSettings(DataSettings):
    """The operator's data settings at a node with images of its own; `path` is where they are.

    The rest is what the node's images have to fit, as the server says.
    """

    holder: int = Field(description="Which of the run's clients this node is.")
    shape: tuple[int, int, int] = Field(description="Channels, height, width of the net's input.")
    classes: int = Field(ge=2, description="Classes that the net tells apart.")
    names: tuple[str, ...] = Field((), description="The server's class folders, 'image-folder'.")


def list_classes(data: DataSettings) -> list[str]:
    """List the class folders of the server, which those of every node have to equal.

    Args:
        data: The settings group `data`.

    Returns:
        The folders of 'image-folder' in their order, in text that a message can hold; none for
        any other source.
    """
    if data.source != "image-folder":
        return []
    return [escape_controls(name) for name in image_folder.find_class_folders(data)[1]]


def load_node_images(data: NodeDataSettings) -> tuple[Images, tuple[str, ...]]:
    """Return the node's images, labels below `data.classes`, shape `data.shape`, and notes on them.

    Grey images become colour where the net takes colour, as grey pictures among others do.

    DataError names the path, what is wrong with it and what to do: nothing at it, a source that
    reads no path, no image, another shape, an unknown label, other class folders than the server's.
    """
    where = f"data-path {data.path!r}"
    if not Path(data.path).is_absolute() or not os.path.exists(data.path):
        raise DataError(
            f"{where}: must be the absolute path of a folder or file that exists; correct "
            "--node-config"
        )
    if data.held_out_classes:
        raise DataError(
            f"data.held-out-classes is {data.held_out_classes}: a node does not know which classes "
            "of its own images the server drew; set it to 0"
        )
    with name_unreadable(where):
        parts = _find_reader(data, where)(data)
    images = map_images(prepare_images(parts.train, data, where), data, where)
    original_shape = tuple(parts.train.x.shape[1:])
    fit = describe_fit(original_shape, images, len(images.y), data.classes)
    notes = (*parts.notes, *fit)
    if images.x.shape[1] == 1 and data.shape[0] == 3:
        images = images._replace(x=images.x.expand(-1, 3, -1, -1).contiguous())
        notes = (*notes, "all grey, taken as colour")
    if (shape := tuple(images.x.shape[1:])) != data.shape:
        raise DataError(
            f"{where}: images are {shape} (channels, height, width), the net takes {data.shape}; "
            "convert them, or set data.size and data.grey"
        )
    remedy = ", the net's classes; number them as the server does"
    check_labels(images.y, data.classes, where, remedy)
    return images, notes


def _find_reader(data: NodeDataSettings, where: str) -> Callable[[NodeDataSettings], SourceParts]:
    """Return what reads the training images of a source; DataError for one that reads no path."""
    is_folder = data.source == "image-folder"
    classes = count_task_classes(len(data.names), data) if is_folder and data.names else 0
    if is_folder and classes != data.classes:
        raise DataError(
            f"{where}: the server has {len(data.names)} folders of classes and a net of "
            f"{data.classes}; give the server an image of each class"
        )
    readers: dict[str, Callable[[NodeDataSettings], SourceParts]] = {
        "idx": lambda d: SourceParts(idx.read_idx_training(d)),
        "cifar": lambda d: SourceParts(cifar.read_cifar_training(d)),
        "npz": lambda d: SourceParts(npz.read_npz_training(d)),
        "image-folder": lambda d: image_folder.read_training_folder(d, list(d.names)),
    }
    if data.source in SOURCES and data.source not in readers:
        raise DataError(
            f"{where} and data.source {data.source!r}: a node reads {', '.join(readers)} or "
            "'package.module:object'; set data.source, or leave data-path out"
        )
    return readers.get(data.source, call_source)
