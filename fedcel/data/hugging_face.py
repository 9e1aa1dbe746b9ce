"""Hugging Face data sets: a folder or a file on this machine, or a name on the Hub."""

import glob
import json
from collections import Counter
from collections.abc import Hashable, Iterator
from io import BytesIO
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import datasets
import pyarrow.parquet
import torch

from fedcel.data.images import Images, SourceParts, name_unreadable, number_names
from fedcel.data.pictures import PictureFile, decode_pictures, describe_pictures
from fedcel.data.source import HuggingFace
from fedcel.errors import DataError, describe_unforeseen, escape_controls

FILE_KINDS = {".parquet": "parquet", ".arrow": "arrow"}
"""Ends of single files that are read, and what reads each."""
VALIDATION = "validation"
HIDDEN = -1  # the label of an image whose class its publisher keeps to itself
SAVED_MARKS = ("dataset_dict.json", "state.json")
"""Files that `save_to_disk` writes at the top of a folder."""


class Columns(NamedTuple):
    """Names of the columns that are read; `holder` is "none" where nobody asks for holders."""

    image: str
    label: str
    holder: str


def read_hugging_face(source: HuggingFace) -> SourceParts:
    """Return the images of the splits `train` and `test`, if there is one; holders; notes.

    Without a `test` whose labels are known, `validation` is the test part. Notes name what is left
    out. The path is a folder that `save_to_disk` wrote, one that `datasets.load_dataset` reads, a
    .parquet or .arrow file, or a name on the Hub. Images are the one column of type Image or,
    without any, the one of encoded pictures: bytes, or a table of `bytes` and `path`. Labels are
    the one of type ClassLabel or, without any, the one of whole numbers, unless a column is named.
    Labels that are no ClassLabel are numbered in their order. DataError says what is wrong and what
    to do.
    """
    splits, notes = _open_splits(source)
    where = source.path
    if "train" not in splits:
        raise DataError(f"{where} has splits {sorted(splits)}, must have 'train'; rename one")
    train_split = splits["train"]
    columns = _choose_columns(train_split, source, where)
    test_name = _choose_test_split(splits, columns, where)
    test_split = splits.get(test_name)
    where_train, where_test = f"{where}, split train", f"{where}, split {test_name}"
    names, feature = None, train_split.features[columns.label]
    class_names = feature.names if isinstance(feature, datasets.ClassLabel) else ()
    if not isinstance(feature, datasets.ClassLabel):
        labels = set(_read_column(train_split, columns.label, where_train))
        names = sorted(labels, key=lambda name: (str(type(name)), name))
        class_names = names if all(isinstance(name, str) for name in names) else ()
    y = _read_labels(train_split, columns.label, names, where_train)
    files = _list_pictures(train_split, columns.image, where_train)
    holders = None
    if columns.holder != "none":
        holder_names = _read_column(train_split, columns.holder, where_train)
        holders = number_names([str(name) for name in holder_names])
    train_count = len(y)
    if test_split is not None:
        y += _read_labels(test_split, columns.label, names, where_test)
        files = chain(files, _list_pictures(test_split, columns.image, where_test))
    if train_count == 0:
        raise DataError(f"{where_train} has no rows; give a data set with pictures")
    x, tally = decode_pictures(files, len(y), size=source.size, grey=source.grey)
    train, test = (
        Images(x[part], torch.tensor(y[part], dtype=torch.int64))
        for part in (slice(train_count), slice(train_count, None))
    )
    classes = len(set(y))
    notes += describe_pictures(tally, len(y), classes, tuple(x.shape[1:]))
    if names is not None and source.label_column == "none":
        notes.append(f"labels are the {len(names)} numbers of column {columns.label}")
    if test_name == VALIDATION:
        notes.append(f"the {len(y) - train_count} of split {VALIDATION} are the test part")
    for name in sorted(splits.keys() - {"train", test_name}):
        notes.append(f"left out: the {splits[name].num_rows} of split {name}")
    shown = tuple(map(escape_controls, notes))
    test_part = None if test_split is None else test
    return SourceParts(train, test_part, holders, shown, tuple(class_names))


def _choose_test_split(splits: dict[str, datasets.Dataset], columns: Columns, where: str) -> str:
    """Return `test`, or `validation` in its place, or nothing; DataError on other columns.

    Publishers who keep the classes of the test images to themselves label each of them -1.
    """
    expected = splits["train"].features
    if "test" in splits:
        if splits["test"].features != expected:
            raise DataError(
                f"{where}: split test has columns {splits['test'].features}, must have those of "
                f"split train, {expected}; cast them"
            )
        if set(_read_column(splits["test"], columns.label, f"{where}, split test")) != {HIDDEN}:
            return "test"
    is_usable = VALIDATION in splits and splits[VALIDATION].features == expected
    return VALIDATION if is_usable else ""


def _open_splits(source: HuggingFace) -> tuple[dict[str, datasets.Dataset], list[str]]:
    """Return all splits, and notes on them; a data set without any is its own `train`.

    DataError when no path is given, or it cannot be loaded.
    """
    folder = Path(source.path)
    kind = FILE_KINDS.get(folder.suffix.lower())
    is_missing = source.is_local and not folder.is_dir() and not (folder.is_file() and kind)
    if is_missing or source.path == "none":
        raise DataError(
            f"data.path is {source.path!r}, which is no folder and no file that ends in "
            f"{' or '.join(FILE_KINDS)}; give the data set's, or its name on the Hub"
        )
    try:
        if not source.is_local:
            return dict(datasets.load_dataset(source.path)), []
        if any((folder / name).is_file() for name in SAVED_MARKS):
            saved = datasets.load_from_disk(source.path)
            return dict(saved) if isinstance(saved, dict) else {"train": saved}, []
        features, notes = _tell_names_apart(folder)
        if kind is None or folder.is_dir():
            return dict(datasets.load_dataset(source.path, features=features)), notes
        files = {"train": glob.escape(source.path)}
        return dict(datasets.load_dataset(kind, data_files=files, features=features)), notes
    except Exception as error:  # damage is met by datasets, pyarrow, json, each in its way
        raise DataError(
            f"{source.path} cannot be loaded ({describe_unforeseen(error)}); check name, "
            "files, rows"
        ) from error


def _tell_names_apart(path: Path) -> tuple[datasets.Features | None, list[str]]:
    """Return columns in which no label name occurs twice, and a note on those that did.

    `datasets` refuses such names, which ImageNet has: there are a bird and a machine called crane.
    None where there is no Parquet file, or no name occurs twice.
    """
    files = [path] if path.is_file() else sorted(path.rglob("*.parquet"))
    if not files or files[0].suffix.lower() != ".parquet":
        return None, []
    metadata = pyarrow.parquet.read_schema(files[0]).metadata or {}
    columns = json.loads(metadata.get(b"huggingface", b"{}")).get("info", {}).get("features", {})
    changed = []
    for column in columns.values():
        if column.get("_type") == "ClassLabel":
            uses = Counter(column["names"])
            for place, name in enumerate(column["names"]):
                if uses[name] > 1:
                    column["names"][place] = f"{name} ({place})"
                    changed.append(column["names"][place])
    if not changed:
        return None, []
    note = f"label names that occur more than once are told apart: {', '.join(changed)}"
    return datasets.Features.from_dict(columns), [note]


def _choose_columns(split: datasets.Dataset, source: HuggingFace, where: str) -> Columns:
    """Return which columns hold what; DataError lists the columns where that is in doubt."""
    types = {name: type(feature).__name__ for name, feature in split.features.items()}
    pictures = [name for name, kind in types.items() if kind == "Image"] or [
        name for name, feature in split.features.items() if _may_hold_pictures(feature)
    ]
    labels = [name for name, kind in types.items() if kind == "ClassLabel"] or [
        name
        for name, feature in split.features.items()
        if _holds_whole_numbers(feature) and name != source.holder_column
    ]
    if source.label_column != "none":
        labels = [name for name in types if name == source.label_column]
    if len(pictures) != 1:
        raise DataError(
            f"{where}: {len(pictures)} columns of pictures among {types}, must be one, of type "
            "Image or of the bytes of encoded pictures; cast it, or remove the others"
        )
    if len(labels) != 1:
        raise DataError(
            f"{where}: {len(labels)} columns of labels among {types}, must be one, of type "
            "ClassLabel or of whole numbers; set data.label-column to its name"
        )
    if source.holder_column not in ("none", *types):
        raise DataError(
            f"data.holder-column is {source.holder_column!r}, must be 'none' or one of "
            f"{', '.join(types)}; name the column of holders"
        )
    return Columns(pictures[0], labels[0], source.holder_column)


def _holds_whole_numbers(feature: object) -> bool:
    """Whether a column is of whole numbers, as labels without metadata are."""
    return isinstance(feature, datasets.Value) and "int" in feature.dtype


def _may_hold_pictures(feature: object) -> bool:
    """Whether a column without metadata is of bytes, or of `bytes` and `path`."""
    if isinstance(feature, dict):
        return "bytes" in feature and _may_hold_pictures(feature["bytes"])
    return isinstance(feature, datasets.Value) and feature.dtype in ("binary", "large_binary")


def _read_labels(
    split: datasets.Dataset, column: str, names: list[object] | None, where: str
) -> list[int]:
    """Return one split's labels; `names` numbers those that are no ClassLabel."""
    labels = _read_column(split, column, where)
    if names is None:
        return labels
    if unknown := set(labels) - set(names):
        raise DataError(
            f"{where}: no training image has the labels {sorted(unknown, key=str)[:5]}; leave "
            "these images out or add training images"
        )
    number = {name: position for position, name in enumerate(names)}
    return [number[label] for label in labels]


def _read_column(split: datasets.Dataset, column: str, where: str) -> list[Any]:
    """Return what a column says of each row; DataError on a row without one value of its own."""
    with name_unreadable(f"{where}, column {column!r}", Exception):
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


def _list_pictures(
    split: datasets.Dataset, column: str, where: str
) -> Iterator[tuple[str, PictureFile]]:
    """Yield each picture's name and place, the bytes in the table or a file, undecoded."""
    if isinstance(split.features[column], datasets.Image):
        split = split.cast_column(column, datasets.Image(decode=False))
    with name_unreadable(f"{where}, column {column!r}", Exception):
        for position, value in enumerate(split.select_columns(column)):
            picture = value[column]
            encoded = picture.get("bytes") if isinstance(picture, dict) else picture
            file: PictureFile = None if encoded is None else BytesIO(encoded)
            if file is None and isinstance(picture, dict) and picture.get("path"):
                file = Path(picture["path"])
            yield f"{where}, image {position}", file
