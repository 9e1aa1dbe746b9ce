"""Sources of images: one class a kind, whose fields are its keys."""

import os
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Literal, NamedTuple, cast

import numpy as np
import torch
from jaxtyping import Shaped
from pydantic import Field
from torch import Tensor

from fedcel import plugins
from fedcel.data.images import (
    Images,
    Labels,
    SourceParts,
    check_images,
    count_classes,
    fit_images,
    name_unreadable,
)
from fedcel.data.pictures import PictureTally, describe_pictures
from fedcel.errors import DataError, FedcelError, escape_controls
from fedcel.settings_table import Kind
from fedcel.short_repr import show_shapes
from fedcel.tensors import check_labels, number_labels, to_floats

HUB_NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?(?<!\.parquet)(?<!\.arrow)")
"""Name of a data set on the Hugging Face Hub, where nothing of this machine has it."""
NODE_SOURCES = "idx, cifar, npz, image-folder or 'package.module:object'"
"""Kinds that read a data holder's own images."""


class Source(Kind, table="data", selector="source", shares_table=True):
    """Source of images with labels."""

    source: str = Field("digits", description="Where images come from.")

    @property
    def where(self) -> str:
        """Name of the source and its path, for messages."""
        return self.kind_name

    def read(self) -> SourceParts:
        """Read all images, as they are; DataError says what is wrong and what to do."""
        raise NotImplementedError

    def read_training(self, classes: Sequence[str]) -> SourceParts:
        """Read the training images of a data holder alone; `classes` are the server's folders."""
        raise DataError(
            f"data.source is {self.kind_name!r}: a node reads {NODE_SOURCES}; set data.source, or "
            "leave data-path out"
        )

    def list_classes(self) -> list[str]:
        """List the class folders, in text that a message can hold; none of most sources."""
        return []

    def fit(self, x: Shaped[Tensor, "N C H W"], where: str) -> Shaped[Tensor, "N c h w"]:
        """Bring images to the size and colours that the settings ask for."""
        return x

    def prepare(self, images: Images, where: str) -> Images:
        """Check images and bring them to size; DataError names `where`."""
        check_images(images, where)
        return images._replace(x=self.fit(images.x, where))


class SizedSource(Source):
    """Source of images that may be resized."""

    size: int = Field(0, ge=0, description="Side in pixels to resize images to; 0: no resizing.")

    def fit(self, x: Shaped[Tensor, "N C H W"], where: str) -> Shaped[Tensor, "N c h w"]:
        """Resize images."""
        return fit_images(x, size=self.size, grey=False, where=where)


class FileSource(SizedSource):
    """Source that reads a folder or a file."""

    is_of_one_size: ClassVar[bool] = True
    """Whether its images are usually of one size before they are resized."""

    path: str = Field(
        "none",
        description="Folder or file of the images; of 'huggingface' also a name on the Hub.",
    )

    @property
    def where(self) -> str:
        """Name of the source and its path, for messages."""
        return self.kind_name if self.path == "none" else f"{self.kind_name} {self.path}"

    @property
    def is_local(self) -> bool:
        """Whether the path is of this machine."""
        return self.path != "none"

    def resolve_path(self) -> "FileSource":
        """Return the source with an absolute path, which means the same from anywhere."""
        if not self.is_local:
            return self
        return self.model_copy(update={"path": str(Path(self.path).resolve())})


class ColourSource(FileSource):
    """Source of images that may have colours."""

    grey: bool = Field(False, description="Whether colours are converted to luminance.")

    def fit(self, x: Shaped[Tensor, "N C H W"], where: str) -> Shaped[Tensor, "N c h w"]:
        """Resize images, and make them grey."""
        return fit_images(x, size=self.size, grey=self.grey, where=where)


class Digits(SizedSource):
    """The 1 797 handwritten digits that come with scikit-learn, (N, 1, 8, 8) in [0, 1].

    They are the test part of UCI's "Optical Recognition of Handwritten Digits", Alpaydin and
    Kaynak, 1998; there is no test set of its own here.
    """

    source: Literal["digits"] = "digits"

    def read(self) -> SourceParts:
        """Read the digits."""
        from sklearn.datasets import load_digits  # a second of imports that other sources spare

        digits = load_digits()
        x = torch.from_numpy((digits.images[:, None] / 16).astype(np.float32))
        return SourceParts(Images(x, torch.from_numpy(digits.target.astype(np.int64))))


class HuggingFace(ColourSource):
    """Hugging Face data set: a folder or file on this machine, or a name on the Hub."""

    source: Literal["huggingface"] = "huggingface"
    label_column: str = Field(
        "none",
        description="Label column; none: the only column of classes, else of integers.",
    )
    holder_column: str = Field(
        "none", description="Column that names each image's holder, for the partition 'natural'."
    )

    @property
    def is_local(self) -> bool:
        """Whether the path is of this machine, and no name on the Hub."""
        is_name = HUB_NAME.fullmatch(self.path) and not os.path.exists(self.path)
        return super().is_local and not is_name

    def read(self) -> SourceParts:
        """Read the splits `train` and `test`, if there is one."""
        from fedcel.data import hugging_face  # needs the extra `simulation`

        return hugging_face.read_hugging_face(self)


class ImportedSource(ColourSource, is_imported=True):
    """Function of a user's own, `package.module:object`; it is called with this object.

    It returns training images and test images or None, and may return a third item: the number of
    each training image's holder.
    """

    is_of_one_size: ClassVar[bool] = False

    def read(self) -> SourceParts:
        """Call the function; DataError where it fails or returns something else."""
        function = plugins.load_object(self.source)
        if not callable(function):
            raise DataError(
                f"data.source is {self.source!r}, which is {type(function).__name__} and cannot be "
                "called; name a function that takes the source's settings"
            )
        try:
            answer = function(self)
        except FedcelError:
            raise
        except Exception as error:
            part = plugins.PartName("data.source", self.source, "check_source")
            raise DataError(part.describe_failure(error)) from error
        return self._check_answer(answer)

    def read_training(self, classes: Sequence[str]) -> SourceParts:
        """Call the function, whose test images are not used."""
        return self.read()

    def _check_answer(self, answer: object) -> SourceParts:
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
                f"data.source {self.source!r} returned {type(answer).__name__}, must be a pair "
                "(fedcel.data.Images, fedcel.data.Images or None), or these and the holder of each "
                "training image"
            )
        return SourceParts(*cast(tuple[Images, Images | None, Labels | None], parts))


@show_shapes
class SourceData(NamedTuple):
    """All images of a source, checked and of one shape.

    Attributes:
        train: The training images.
        test: The test images, or None where the source has no such part.
        classes: C; labels are 0..C-1.
        holders: Number of each training image's holder, or None.
        notes: Lines of text that say what was done to the images; none where nothing was.
        class_names: Names of the C classes; none where the source has none.
        size: Side in pixels to which `resize` brings images that are taken; 0: none is resized.
    """

    train: Images
    test: Images | None
    classes: int
    holders: Labels | None
    notes: tuple[str, ...] = ()
    class_names: tuple[str, ...] = ()
    size: int = 0

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a resized image, (C, H, W)."""
        channels, height, width = self.train.x.shape[1:]
        return (channels, self.size or height, self.size or width)

    def resize(self, images: Images) -> Images:
        """Bring images of this source to size."""
        return images._replace(x=fit_images(images.x, size=self.size, grey=False, where=""))

    @property
    def y(self) -> Labels:
        """The labels of the training images, followed by those of the test images."""
        return self.train.y if self.test is None else torch.cat([self.train.y, self.test.y])


def read_source(source: Source, *, is_numbered_anew: bool = False) -> SourceData:
    """Read all images of a source and check them.

    Args:
        source: The source, with its path, size and greyness.
        is_numbered_anew: Number the labels that occur 0..C-1, whatever they are: for those who ask
            only which images are alike. Else their numbers are the classes of a net, and a gap is
            refused.

    Returns:
        The images, as grey and as large as the settings ask for.

    Raises:
        DataError: What the source gives is no set of labelled images.
        PluginError: An import string leads nowhere.
    """
    with name_unreadable(f"data.path {getattr(source, 'path', 'none')!r}"):
        train, test, holders, notes, class_names, is_labelled = source.read()
    if not is_labelled and not is_numbered_anew:
        raise DataError(
            f"{source.where} has images without labels, must have one folder a class; sort them "
            "into folders of their classes"
        )
    original_shape = tuple(train.x.shape[1:])
    where, where_test = f"{source.where}: training part", f"{source.where}: test part"
    train = source.prepare(train, where)
    if test is not None:
        test = source.prepare(test, where_test)
        if train.x.dtype != test.x.dtype:
            train, test = (part._replace(x=to_floats(part.x)) for part in (train, test))
    if is_numbered_anew:
        labels = [part.y for part in (train, test) if part is not None]
        present = torch.unique(torch.cat(labels)).tolist()
        class_names = tuple(
            class_names[label] for label in present if 0 <= label < len(class_names)
        )
        numbers = number_labels(*labels)
        classes = count_classes(torch.cat(numbers), source.where)
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
        check_labels(test.y, classes, f"{where_test}: labels", remedy)
        if test.x.shape[1:] != train.x.shape[1:]:
            raise DataError(
                f"{source.where}: test images are {tuple(test.x.shape[1:])}, must be "
                f"{tuple(train.x.shape[1:])} as the training images are; resize them"
            )
    count = len(train.y) + (0 if test is None else len(test.y))
    notes = (*notes, *describe_fit(original_shape, tuple(train.x.shape[1:]), count, classes))
    # A name too few names nothing; one too many is of a class without images.
    names = tuple(map(escape_controls, class_names[:classes]))
    return SourceData(train, test, classes, holders, notes, names if len(names) == classes else ())


def describe_fit(
    original_shape: tuple[int, ...], shape: tuple[int, ...], count: int, classes: int
) -> list[str]:
    """Describe what fitting images of one shape (C, H, W) to the settings did, if anything.

    `count` is of training and test images, `shape` that of the fitted ones.
    """
    channels, height, width = original_shape
    changes = Counter({"colour": count} if channels > shape[0] else {})
    return describe_pictures(
        PictureTally((width, height), (width, height), changes), count, classes, shape
    )
