"""Folders of pictures, one folder a class, in any format that Pillow reads."""

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Literal, NamedTuple

import torch

from fedcel.data.images import Images, Labels, SourceParts, number_names
from fedcel.data.pictures import MAX_NAMED, decode_pictures, describe_pictures
from fedcel.data.source import ColourSource
from fedcel.errors import DataError, escape_controls, join_first

SYSTEM_NAMES = {"thumbs.db", "ehthumbs.db", "desktop.ini", "__macosx", "@eadir"}
"""Files that systems leave in folders of pictures, in lower case; so are names with a dot first."""
PARTS = {"train", "training", "test", "testing", "val", "valid", "validation", "dev"}
"""Folders of these names are parts of a data set, if there are no others beside them."""


FOLDER_MARKS = {
    "idx": ("train-images*idx3-ubyte*",),
    "cifar": ("data_batch_1.bin", "train.bin"),
    "huggingface": ("dataset_dict.json", "state.json", "*.parquet", "*.arrow"),
}
"""Files that say which source reads a folder; one without any is a folder of class folders."""


def find_folder_source(folder: str | Path) -> str:
    """Find the source that reads a folder, by the names of its files.

    Args:
        folder: A folder.

    Returns:
        The kind of the source, `image-folder` where no file says another.
    """
    return next(
        (
            source
            for source, marks in FOLDER_MARKS.items()
            if any(any(Path(folder).glob(mark)) for mark in marks)
        ),
        "image-folder",
    )


class ClassFile(NamedTuple):
    """A file in the folder of a class."""

    path: Path
    label: int


class ImageFolder(ColourSource):
    """Tree CLASS/IMAGE or CLASS/HOLDER/IMAGE, or two such trees `train` and `test`.

    Classes and holders are numbered in the order of their names, files likewise; names that begin
    with a dot, `SYSTEM_NAMES` and files beside the folders of classes are left out. A folder of
    pictures alone has no labels: nothing is trained on it, but a leak can be measured.
    """

    is_of_one_size: ClassVar[bool] = False

    source: Literal["image-folder"] = "image-folder"

    def read(self) -> SourceParts:
        """Read training images, test images if there are, and each training image's holder."""
        root, (folder, classes) = Path(self.path), self._find_class_folders()
        pictures = [] if classes else _list_visible(root)
        if pictures and find_folder_source(root) == "image-folder":
            alone = [ClassFile(path, number) for number, path in enumerate(pictures)]
            train, _, notes = self._decode(alone, [], len(alone))
            return SourceParts(train, notes=tuple(notes), is_labelled=False)
        has_test = folder != root
        test_names = {path.name for path in _list_folders(root / "test")} if has_test else set()
        if unknown := test_names - set(classes):
            raise DataError(
                f"{root / 'test'}: no training image is of {sorted(unknown)[:5]}, must be classes "
                f"of {root / 'train'}; move these folders away or add training images"
            )
        files = _list_tree(folder, classes)
        filled = {file.label for file in files}
        if empty := [name for label, name in enumerate(classes) if label not in filled]:
            raise DataError(
                f"{folder}: folders of classes without an image: {empty[:MAX_NAMED]}, "
                f"{len(empty)} of {len(classes)}; each class must have one; fill or remove them"
            )
        test_files = _list_tree(root / "test", classes) if has_test else []
        train, test, notes = self._decode(files, test_files, len(classes))
        for tree in (root, folder, root / "test") if has_test else (root,):
            notes += _describe_strays(tree)
        holders = _number_holders(folder, files)
        return SourceParts(train, test if has_test else None, holders, tuple(notes), tuple(classes))

    def read_training(self, classes: Sequence[str]) -> SourceParts:
        """Read the training images, numbered by the server's classes, which may be empty folders.

        Labels are places in the order of names, so a folder more or less would shift all that
        follow: DataError unless the folders are exactly these.
        """
        folder, folders = self._find_class_folders()
        names = [escape_controls(name) for name in folders]
        if names != list(classes):
            raise DataError(
                f"{folder}: folders of classes lack {sorted(set(classes) - set(names))[:5]} and "
                f"have {sorted(set(names) - set(classes))[:5]} beyond, must be the server's "
                f"{len(classes)}; make an empty folder of a class without images, move others away"
            )
        files = _list_tree(folder, folders)
        train, _, notes = self._decode(files, [], len(classes))
        notes += _describe_strays(folder)
        return SourceParts(train, None, _number_holders(folder, files), tuple(notes))

    def list_classes(self) -> list[str]:
        """List the class folders in their order, in text that a message can hold."""
        return [escape_controls(name) for name in self._find_class_folders()[1]]

    def _find_class_folders(self) -> tuple[Path, list[str]]:
        """Return the folder above the training images' classes, and the classes in their order."""
        root = Path(self.path)
        if self.path == "none" or not root.is_dir():
            raise DataError(
                f"data.path is {self.path!r}, which is no folder; give one with a folder per class"
            )
        names = [path.name for path in _list_folders(root)]
        if names == ["test", "train"]:
            return root / "train", [path.name for path in _list_folders(root / "train")]
        if names and {name.casefold() for name in names} <= PARTS:
            raise DataError(
                f"{root} has the folders {names}, which are parts, not classes; must be 'train' "
                "and 'test', or the classes themselves: rename the folders, move others away, or "
                "set data.path to one of them"
            )
        return root, names

    def _decode(
        self, files: list[ClassFile], test_files: list[ClassFile], classes: int
    ) -> tuple[Images, Images, list[str]]:
        """Return training images, test images, and notes on what was done to them."""
        both, count = [*files, *test_files], len(files)
        named = ((str(file.path), file.path) for file in both)
        x, tally = decode_pictures(named, len(both), size=self.size, grey=self.grey)
        y = torch.tensor([file.label for file in both])
        notes = describe_pictures(tally, len(both), classes, tuple(x.shape[1:]))
        return Images(x[:count], y[:count]), Images(x[count:], y[count:]), notes


def _list_tree(root: Path, classes: list[str]) -> list[ClassFile]:
    """Return the files below a folder by class and name; DataError unless there are any."""
    files = [
        ClassFile(path, label)
        for label, name in enumerate(classes)
        for path in _list_class_files(root / name)
    ]
    if len(classes) < 2 or not files:
        other = find_folder_source(root)
        remedy = "" if other == "image-folder" else f", or data.source={other} for the files there"
        raise DataError(
            f"{root} has {len(classes)} folders with {len(files)} images, must have one folder a "
            "class, of two classes at least; set data.path to the folder above the classes" + remedy
        )
    return files


def _number_holders(root: Path, files: list[ClassFile]) -> Labels | None:
    """Return each file's holder, None where no file is in a folder of one; DataError if only some.

    `root` is the folder above the classes.
    """
    paths = [file.path for file in files]
    holders = [path.parent.name for path in paths if len(path.relative_to(root).parts) == 3]
    if holders and len(holders) < len(paths):
        raise DataError(
            f"{root}: {len(holders)} of {len(paths)} images are in a folder of their holder, must "
            "be all or none; sort them as CLASS/IMAGE or as CLASS/HOLDER/IMAGE"
        )
    return number_names(holders) if holders else None


def _list_visible(root: Path) -> list[Path]:
    """Return what is in a folder by name, without hidden files and what systems leave behind."""
    try:
        paths = sorted(root.iterdir())
    except OSError as error:
        raise DataError(f"{root} cannot be listed ({error}); allow to read it") from error
    return [
        path
        for path in paths
        if not path.name.startswith(".") and path.name.casefold() not in SYSTEM_NAMES
    ]


def _list_folders(root: Path) -> list[Path]:
    """Return the visible folders in a folder by name."""
    return [path for path in _list_visible(root) if path.is_dir()]


def _list_class_files(root: Path) -> list[Path]:
    """Return the visible files of a class, which are at most one folder down, by name."""
    if not root.is_dir():
        return []
    holders = _list_folders(root)
    if deeper := [path for holder in holders for path in _list_folders(holder)]:
        raise DataError(f"{deeper[0]} is too deep, must be CLASS/HOLDER/IMAGE; move its images up")
    entries = [path for folder in (root, *holders) for path in _list_visible(folder)]
    # A link to nothing stays: it is refused by name where it would be decoded.
    return sorted(path for path in entries if not path.is_dir())


def _describe_strays(root: Path) -> list[str]:
    """Describe the files beside the folders of classes, which are left out."""
    names = [escape_controls(path.name) for path in _list_visible(root) if not path.is_dir()]
    return [f"left out, beside the class folders: {join_first(names, MAX_NAMED)}"] if names else []
