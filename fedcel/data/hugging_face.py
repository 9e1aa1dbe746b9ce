"""Hugging Face data sets: a folder on this machine, or a name on the Hub."""

from collections.abc import Hashable
from pathlib import Path
from typing import Any, NamedTuple

import datasets
import torch

from fedcel.data.image_folder import decode_picture, number_names, stack_images
from fedcel.data.images import Images, Labels
from fedcel.errors import DataError
from fedcel.settings import DataSettings

SAVED_MARKS = ("dataset_dict.json", "state.json")
"""Files that `save_to_disk` writes at the top of a folder."""


class Columns(NamedTuple):
    """Names of the columns that are read; `holder` is "none" where nobody asks for holders."""

    image: str
    label: str
    holder: str


def read_hugging_face(data: DataSettings) -> tuple[Images, Images | None, Labels | None]:
    """Return the images of the splits `train` and, where there is one, `test`; and the holders.

    `data.path` is a folder that `save_to_disk` wrote, or one that `datasets.load_dataset` reads;
    `data.repository` is a name on the Hub. Images are the one column of type Image, labels the one
    of type ClassLabel unless `data.label-column` names them, holders `data.holder-column`. Labels
    that are no ClassLabel are numbered in their order. DataError says what is wrong and what to do.
    """
    splits = _open_splits(data)
    where = data.path if data.repository == "none" else data.repository
    if "train" not in splits:
        raise DataError(f"{where} has splits {sorted(splits)}, must have 'train'; rename one")
    train_split, test_split = splits["train"], splits.get("test")
    if test_split is not None and test_split.features != train_split.features:
        raise DataError(
            f"{where}: split test has columns {test_split.features}, must have those of split "
            f"train, {train_split.features}; cast them"
        )
    columns = _choose_columns(train_split, data, where)
    where_train, where_test = f"{where}, split train", f"{where}, split test"
    names = None
    if not isinstance(train_split.features[columns.label], datasets.ClassLabel):
        labels = set(_read_column(train_split, columns.label, where_train))
        names = sorted(labels, key=lambda name: (str(type(name)), name))
    train = _decode_split(train_split, columns, data, names=names, where=where_train)
    holders = None
    if columns.holder != "none":
        holder_names = _read_column(train_split, columns.holder, where_train)
        holders = number_names([str(name) for name in holder_names])
    test = None
    if test_split is not None:
        test = _decode_split(test_split, columns, data, names=names, where=where_test)
    return train, test, holders


def _open_splits(data: DataSettings) -> dict[str, datasets.Dataset]:
    """Return all splits; a data set without any is its own `train`.

    DataError when neither or both of path and repository are given, or it cannot be loaded.
    """
    if (data.path == "none") == (data.repository == "none"):
        raise DataError(
            f"data.path is {data.path!r} and data.repository {data.repository!r}, one of the two "
            "must be 'none'; give a folder, or the name of a data set on the Hub"
        )
    folder = Path(data.path)
    try:
        if data.repository != "none":
            return dict(datasets.load_dataset(data.repository))
        if not folder.is_dir():
            raise DataError(f"data.path is {data.path!r}, which is no folder; give the data set's")
        if any((folder / name).is_file() for name in SAVED_MARKS):
            saved = datasets.load_from_disk(str(folder))
            return dict(saved) if isinstance(saved, dict) else {"train": saved}
        return dict(datasets.load_dataset(str(folder)))
    except (OSError, ValueError, IndexError, datasets.exceptions.DatasetsError) as error:
        # IndexError: a saved split without rows
        if isinstance(error, DataError):
            raise
        where = data.path if data.repository == "none" else data.repository
        raise DataError(f"{where} cannot be loaded ({error}); check name, files, rows") from error


def _choose_columns(split: datasets.Dataset, data: DataSettings, where: str) -> Columns:
    """Return which columns hold what; DataError lists the columns where that is in doubt."""
    types = {name: type(feature).__name__ for name, feature in split.features.items()}
    pictures = [name for name, kind in types.items() if kind == "Image"]
    labels = [name for name, kind in types.items() if kind == "ClassLabel"]
    if data.label_column != "none":
        labels = [name for name in types if name == data.label_column]
    if len(pictures) != 1:
        raise DataError(
            f"{where}: {len(pictures)} columns of type Image among {types}, must be one; cast or "
            "remove the others"
        )
    if len(labels) != 1:
        raise DataError(
            f"{where}: {len(labels)} columns of labels among {types}, must be one; set "
            "data.label-column to its name"
        )
    if data.holder_column not in ("none", *types):
        raise DataError(
            f"data.holder-column is {data.holder_column!r}, must be 'none' or one of "
            f"{', '.join(types)}; name the column of holders"
        )
    return Columns(pictures[0], labels[0], data.holder_column)


def _decode_split(
    split: datasets.Dataset,
    columns: Columns,
    data: DataSettings,
    *,
    names: list[object] | None,
    where: str,
) -> Images:
    """Return one split's images; `names` numbers labels that are no ClassLabel."""
    labels = _read_column(split, columns.label, where)
    if names is not None:
        if unknown := set(labels) - set(names):
            raise DataError(
                f"{where}: no training image has the labels {sorted(unknown, key=str)[:5]}; leave "
                "these images out or add training images"
            )
        number = {name: position for position, name in enumerate(names)}
        labels = [number[label] for label in labels]
    titles = [f"{where}, image {position}" for position in range(len(labels))]
    images = [
        decode_picture(_read_picture(split, columns.image, position, title), data, title)
        for position, title in enumerate(titles)
    ]
    return Images(stack_images(images, titles), torch.tensor(labels, dtype=torch.int64))


def _read_column(split: datasets.Dataset, column: str, where: str) -> list[Any]:
    """Return what a column says of each row; DataError on a row without one value of its own."""
    values = list(split[column][:])
    for position, value in enumerate(values):
        if value is None:
            raise DataError(
                f"{where}, image {position} has no value in column {column!r}, each row must have "
                "one; fill it in or remove the row"
            )
        if not isinstance(value, Hashable):
            raise DataError(
                f"{where}, image {position} has {value!r:.60} in column {column!r}, must be one "
                "number or text; name another column"
            )
    return values


def _read_picture(split: datasets.Dataset, column: str, position: int, where: str) -> Any:
    """Return one picture; DataError when it is missing or Pillow cannot read it."""
    try:
        picture = split[position][column]
    except (OSError, SyntaxError) as error:
        raise DataError(f"{where} cannot be read ({error}); remove it or load it anew") from error
    if picture is None:
        raise DataError(f"{where} is missing, each row must have one; remove the row")
    return picture
