"""Folders of pictures, one folder a class, in any format that Pillow reads."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from fedcel.data.images import Images, Labels, fit_to_settings, scale_bytes
from fedcel.errors import DataError
from fedcel.extras import import_optional
from fedcel.settings import DataSettings

if TYPE_CHECKING:
    import PIL.Image

MODES = {"1": "L", "L": "L", "P": "RGB", "RGB": "RGB", "CMYK": "RGB", "YCbCr": "RGB"}
"""Pillow's modes of 8 bits a channel that become grey or red, green, blue without loss of range."""


def read_image_folder(data: DataSettings) -> tuple[Images, Images | None, Labels | None]:
    """Return training images, test images or None, and each training image's holder or None.

    `data.path` is CLASS/IMAGE or CLASS/HOLDER/IMAGE, or two such trees `train` and `test`. Classes
    and holders are numbered in the order of their names, files likewise; names that begin with a
    dot and files beside the folders of classes are left out. DataError names the file or folder,
    what is wrong with it and what to do.
    """
    root, (folder, classes) = Path(data.path), find_class_folders(data)
    has_test = folder != root
    test_names = {path.name for path in _list_folders(root / "test")} if has_test else set()
    if unknown := test_names - set(classes):
        raise DataError(
            f"{root / 'test'}: no training image is of {sorted(unknown)[:5]}, must be classes of "
            f"{root / 'train'}; move these folders away or add training images"
        )
    train, holders = _read_tree(folder, classes, data)
    return train, _read_tree(root / "test", classes, data)[0] if has_test else None, holders


def find_class_folders(data: DataSettings) -> tuple[Path, list[str]]:
    """Return the folder above the training images' classes, and the classes in their order."""
    root = Path(data.path)
    if data.path == "none" or not root.is_dir():
        raise DataError(
            f"data.path is {data.path!r}, which is no folder; give one with a folder per class"
        )
    names = [path.name for path in _list_folders(root)]
    if names != ["test", "train"]:
        return root, names
    return root / "train", [path.name for path in _list_folders(root / "train")]


def read_training_folder(data: DataSettings, classes: list[str]) -> Images:
    """Return the training images alone, numbered by these classes, which may be empty folders.

    Labels are places in the order of names, so a folder more or less would shift all that follow:
    DataError unless the folders are exactly these.
    """
    folder, names = find_class_folders(data)
    if names != classes:
        raise DataError(
            f"{folder}: folders of classes lack {sorted(set(classes) - set(names))[:5]} and have "
            f"{sorted(set(names) - set(classes))[:5]} beyond, must be the server's "
            f"{len(classes)}; make an empty folder of a class without images, move others away"
        )
    return _read_tree(folder, classes, data)[0]


def _read_tree(root: Path, classes: list[str], data: DataSettings) -> tuple[Images, Labels | None]:
    """Return the images below a folder, and their holders where all lie in folders of holders."""
    files = [
        (path, label)
        for label, name in enumerate(classes)
        for path in _list_class_files(root / name)
    ]
    if len(classes) < 2 or not files:
        raise DataError(
            f"{root} has {len(classes)} folders with {len(files)} images, must have one folder a "
            "class, of two classes at least; set data.path to the folder above the classes"
        )
    paths = [path for path, _ in files]
    holders = [path.parent.name for path in paths if len(path.relative_to(root).parts) == 3]
    if holders and len(holders) < len(paths):
        raise DataError(
            f"{root}: {len(holders)} of {len(paths)} images are in a folder of their holder, must "
            "be all or none; sort them as CLASS/IMAGE or as CLASS/HOLDER/IMAGE"
        )
    x = stack_images([_open_image(path, data) for path in paths], [str(path) for path in paths])
    labels = torch.tensor([label for _, label in files])
    return Images(x, labels), number_names(holders) if holders else None


def number_names(names: list[str]) -> Labels:
    """Return 0, 1, ... in the order of the names."""
    return torch.from_numpy(np.unique(names, return_inverse=True)[1].astype(np.int64))


def _list_folders(root: Path) -> list[Path]:
    """Return the visible folders in a folder by name."""
    return sorted(
        path for path in root.iterdir() if path.is_dir() and not path.name.startswith(".")
    )


def _list_class_files(root: Path) -> list[Path]:
    """Return the visible files of a class, which are at most one folder down, by name."""
    if not root.is_dir():
        return []
    holders = _list_folders(root)
    if deeper := [path for holder in holders for path in _list_folders(holder)]:
        raise DataError(f"{deeper[0]} is too deep, must be CLASS/HOLDER/IMAGE; move its images up")
    files = [path for folder in (root, *holders) for path in folder.iterdir() if path.is_file()]
    return sorted(path for path in files if not path.name.startswith("."))


def _open_image(path: Path, data: DataSettings) -> Float[Tensor, "C H W"]:
    """Return one image file in [0, 1]; DataError when Pillow cannot read it."""
    Image = import_optional("PIL.Image")  # noqa: N806 - a module of that name
    try:
        with Image.open(path) as picture:
            return decode_picture(picture, data, str(path))
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        if isinstance(error, DataError):
            raise
        is_image = not isinstance(error, Image.UnidentifiedImageError)
        fault = "cannot be read" if is_image else "is no image"
        raise DataError(f"{path} {fault} ({error}); remove it or copy it anew") from error


def decode_picture(
    picture: "PIL.Image.Image", data: DataSettings, where: str
) -> Float[Tensor, "C H W"]:
    """Return a picture the right way up, in [0, 1], 1 or 3 channels, as the settings size it."""
    if picture.mode not in MODES or picture.has_transparency_data:
        raise DataError(
            f"{where} is of mode {picture.mode}, must be of {', '.join(MODES)} without "
            "transparency; save it as 8-bit grey or RGB"
        )
    upright = import_optional("PIL.ImageOps").exif_transpose(picture).convert(MODES[picture.mode])
    pixels = scale_bytes(np.array(upright))
    x = pixels[None] if pixels.dim() == 2 else pixels.permute(2, 0, 1)
    return fit_to_settings(x[None], data, where)[0]


def stack_images(images: list[Float[Tensor, "..."]], names: list[str]) -> Float[Tensor, "N C H W"]:
    """Return images of one shape as one tensor; DataError names the first that differs."""
    for image, name in zip(images, names, strict=True):
        if image.shape != images[0].shape:
            raise DataError(
                f"{name} is {tuple(image.shape)}, {names[0]} is {tuple(images[0].shape)} (channels,"
                " height, width), must be equal; set data.size to resize, data.grey for one channel"
            )
    return torch.stack(images)
