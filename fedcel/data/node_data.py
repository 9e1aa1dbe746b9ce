"""A data holder's own images: all training images of its folder or file, and nothing else."""

import os
from functools import partial
from pathlib import Path

from pydantic import Field

from fedcel.data.data_settings import DataSettings
from fedcel.data.image_cache import keep_decoded
from fedcel.data.image_folder import ImageFolder
from fedcel.data.images import Images, name_unreadable
from fedcel.data.source import FileSource, SourceData, describe_fit
from fedcel.errors import DataError
from fedcel.tensors import check_labels


class NodeDataSettings(DataSettings):
    """The operator's data settings at a node with images of its own, which the source reads.

    The rest is what the node's images have to fit, as the server says.
    """

    holder: int = Field(description="Which of the run's clients this node is.")
    shape: tuple[int, int, int] = Field(description="Channels, height, width of the net's input.")
    classes: int = Field(ge=2, description="Classes that the net tells apart.")
    names: tuple[str, ...] = Field((), description="The server's class folders, 'image-folder'.")

    @classmethod
    def at_node(cls, data: DataSettings, path: str, **requirements: object) -> "NodeDataSettings":
        """Put a node's folder or file in the place of the run's, and say what it has to fit."""
        source = data.source
        if isinstance(source, FileSource):
            source = source.model_copy(update={"path": path})
        return cls.model_validate({**dict(data), "source": source, **requirements})


def load_node_images(data: NodeDataSettings) -> tuple[Images, tuple[str, ...]]:
    """Return the node's images, labels below `data.classes`, shape `data.shape`, and notes on them.

    Grey images become colour where the net takes colour, as grey pictures among others do.

    DataError names the path, what is wrong with it and what to do: nothing at it, a source that
    reads no path, no image, another shape, an unknown label, other class folders than the server's.
    """
    source = data.source
    path = source.path if isinstance(source, FileSource) else "none"
    where = f"data-path {path!r}"
    if path != "none" and not (Path(path).is_absolute() and os.path.exists(path)):
        raise DataError(
            f"{where}: must be the absolute path of a folder or file that exists; correct "
            "--node-config"
        )
    if data.held_out_classes:
        raise DataError(
            f"data.held-out-classes is {data.held_out_classes}: a node does not know which classes "
            "of its own images the server drew; set it to 0"
        )
    if isinstance(source, ImageFolder):
        classes = data.count_task_classes(len(data.names)) if data.names else 0
        if classes != data.classes:
            raise DataError(
                f"{where}: the server has {len(data.names)} folders of classes and a net of "
                f"{data.classes}; give the server an image of each class"
            )
    decode = partial(_read_training, data, where)
    training = keep_decoded(source, f"node {data.names} {data.classes}", decode)
    images, notes = data.map_images(training.train, where), training.notes
    if images.x.shape[1] == 1 and data.shape[0] == 3:
        images = images._replace(x=images.x.expand(-1, 3, -1, -1).contiguous())
        notes = (*notes, "all grey, taken as colour")
    if (shape := tuple(images.x.shape[1:])) != data.shape:
        raise DataError(
            f"{where}: images are {shape} (channels, height, width), the net takes {data.shape}; "
            "convert them, or set data.size and data.grey"
        )
    remedy = ", the net's classes; number them as the server does"
    check_labels(images.y, data.classes, f"{where}: labels", remedy)
    return images, notes


def _read_training(data: NodeDataSettings, where: str) -> SourceData:
    """Read the training images of a node's source; DataError names `where`."""
    with name_unreadable(where):
        parts = data.source.read_training(data.names)
    images = data.source.prepare(parts.train, where)
    original_shape, shape = tuple(parts.train.x.shape[1:]), tuple(images.x.shape[1:])
    fit = describe_fit(original_shape, shape, len(images.y), data.classes)
    return SourceData(images, None, data.classes, None, (*parts.notes, *fit))
