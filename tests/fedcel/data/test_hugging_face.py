"""Hugging Face data sets on disk: columns, splits, and what is refused."""

import json
from io import BytesIO
from pathlib import Path

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from fedcel.data import HuggingFace, ImageFolder, read_source
from fedcel.data.hugging_face import read_hugging_face
from fedcel.errors import DataError

SAMPLE = Path(__file__).parents[4] / "shared" / "data" / "imagenet-sample"
PIXELS = np.arange(4 * 20, dtype=np.uint8).reshape(4, 5, 4) * 3
FEATURES = datasets.Features(
    {
        "picture": datasets.Image(),
        "kind": datasets.ClassLabel(names=["cat", "dog"]),
        "writer": datasets.Value("string"),
        "digit": datasets.Value("int64"),
    }
)


def rows(count: int) -> datasets.Dataset:
    """Return a data set of these many small pictures."""
    table = {
        "picture": [Image.fromarray(pixels) for pixels in PIXELS[:count]],
        "kind": [0, 1, 1, 0][:count],
        "writer": ["zoe", "ann", "zoe", "ann"][:count],
        "digit": [7, 3, 9, 7][:count],
    }
    return datasets.Dataset.from_dict(table, features=FEATURES)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep what the library converts apart."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


NO_PICTURES = rows(4).remove_columns("picture")  # without pictures an empty split can be saved


def saved(folder: Path, parts: datasets.Dataset | dict[str, datasets.Dataset]) -> HuggingFace:
    """Write a data set as `save_to_disk` does."""
    saved_set = datasets.DatasetDict(parts) if isinstance(parts, dict) else parts
    saved_set.save_to_disk(str(folder / "set"))
    return HuggingFace(path=str(folder / "set"))


def test_reads_back_what_was_saved(tmp_path: Path) -> None:
    """Both splits, columns by type, as bytes."""
    data = saved(tmp_path, {"train": rows(4), "test": rows(2)})
    train, test, classes, holders, _, class_names, _ = read_source(data)
    assert class_names == ("cat", "dog")
    want = torch.from_numpy(PIXELS[:, None])
    assert torch.equal(train.x, want) and train.y.tolist() == [0, 1, 1, 0] and classes == 2
    assert test is not None and torch.equal(test.x, want[:2]) and holders is None


def test_columns_named_by_settings(tmp_path: Path) -> None:
    """A single data set is the training part; other labels are numbered in their order."""
    data = saved(tmp_path, rows(4))
    named = {"label_column": "digit", "holder_column": "writer", "size": 3}
    train, test, holders, _, class_names, _ = read_hugging_face(data.model_copy(update=named))
    assert class_names == ()  # numbers are no names
    by_writer = read_source(data.model_copy(update={"label_column": "writer"}))
    assert by_writer.class_names == ("ann", "zoe")
    assert test is None and train.y.tolist() == [1, 0, 2, 1] and train.x.shape == (4, 1, 3, 3)
    assert holders is not None and holders.tolist() == [1, 0, 1, 0]


def test_a_folder_that_load_dataset_reads(tmp_path: Path) -> None:
    """A tree of pictures gives what the source image-folder gives."""
    for number, label in enumerate(["cat", "dog", "dog", "cat"]):
        path = tmp_path / "tree" / "train" / label / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(PIXELS[number]).save(path)
    train, test, *_ = HuggingFace(path=str(tmp_path / "tree")).read()
    want, *_ = ImageFolder(path=str(tmp_path / "tree" / "train")).read()
    assert test is None
    order = train.x.flatten(1).sum(1).argsort(), want.x.flatten(1).sum(1).argsort()
    assert torch.equal(train.x[order[0]], want.x[order[1]])
    assert torch.equal(train.y[order[0]], want.y[order[1]])


@pytest.mark.parametrize(
    ("parts", "more", "message"),
    [
        ({"validation": rows(4)}, {}, r"has splits \['validation'\], must have 'train'"),
        ({"train": NO_PICTURES, "test": NO_PICTURES.select([])}, {}, "cannot be loaded"),
        ({"train": rows(4), "test": NO_PICTURES}, {}, "split test has columns .*must have those"),
        ({"train": rows(4)}, {"label_column": "dog"}, "0 columns of labels among .*'kind'"),
        ({"train": rows(4)}, {"holder_column": "who"}, "holder-column is 'who', must be .*writer"),
        (
            {"train": rows(4).remove_columns(["kind", "digit"])},
            {},
            "0 columns of labels.*whole numbers; set data.label-column",
        ),
        ({"train": NO_PICTURES}, {}, "0 columns of pictures among"),
        (
            {"train": rows(1), "test": rows(2)},
            {"label_column": "digit"},
            r"split test: no training image has the labels \[3\]",
        ),
    ],
)
def test_what_does_not_fit_is_refused(
    tmp_path: Path, parts: dict[str, datasets.Dataset], more: dict[str, str], message: str
) -> None:
    """With the columns or splits that there are."""
    data = saved(tmp_path, parts)
    with pytest.raises(DataError, match=message):
        read_hugging_face(data.model_copy(update=more))


def test_missing_and_damaged_pictures_are_refused(tmp_path: Path) -> None:
    """The row is named."""
    broken = datasets.Features({"picture": datasets.Image(), "kind": FEATURES["kind"]})
    for name, second, message in (
        ("missing", None, "image 1 is missing"),
        ("damaged", {"bytes": b"text", "path": None}, "image 1 is no image"),
    ):
        table = {"picture": [Image.fromarray(PIXELS[0]), second], "kind": [0, 1]}
        data = saved(tmp_path / name, datasets.Dataset.from_dict(table, features=broken))
        with pytest.raises(DataError, match=message):
            data.read()


@pytest.mark.parametrize(
    ("kind", "labels", "message"),
    [
        (FEATURES["kind"], [0, None], "image 1 has no value in column 'kind'.*remove the row"),
        (FEATURES["writer"], ["cat", None], "image 1 has no value in column 'kind'"),
        ([FEATURES["digit"]], [[1], [2, 3]], r"image 0 has \[1\] in column 'kind', must be one"),
    ],
)
@pytest.mark.parametrize("part", ["train", "test"])
def test_rows_without_one_label_are_refused(
    tmp_path: Path, part: str, kind: object, labels: list[object], message: str
) -> None:
    """Missing in a column of either kind, or several; in either split."""
    features = datasets.Features({"picture": datasets.Image(), "kind": kind})
    pictures = [Image.fromarray(pixels) for pixels in PIXELS[:2]]
    table = datasets.Dataset.from_dict({"picture": pictures, "kind": labels}, features=features)
    parts = {"train": table}
    if part == "test" and labels[1] is None:
        whole = datasets.Dataset.from_dict(
            {"picture": pictures, "kind": labels[:1] * 2}, features=features
        )
        parts = {"train": whole, "test": table}
    data = saved(tmp_path, parts).model_copy(update={"label_column": "kind"})
    with pytest.raises(DataError, match=message):
        data.read()


def test_rows_without_a_holder_are_refused(tmp_path: Path) -> None:
    """They are not all held by one nobody."""
    table = {
        "picture": [Image.fromarray(pixels) for pixels in PIXELS[:2]],
        "kind": [0, 1],
        "writer": ["ann", None],
    }
    features = datasets.Features({name: FEATURES[name] for name in table})
    data = saved(tmp_path, datasets.Dataset.from_dict(table, features=features))
    with pytest.raises(DataError, match="split train, image 1 has no value in column 'writer'"):
        read_hugging_face(data.model_copy(update={"holder_column": "writer"}))


def test_nowhere_to_read_from(tmp_path: Path) -> None:
    """Nothing named, no folder, a folder without data."""
    for path in ("none", str(tmp_path / "nowhere"), "./nowhere", "nowhere.parquet"):
        with pytest.raises(DataError, match="is no folder .* or its name on the Hub"):
            HuggingFace(path=path).read()
    with pytest.raises(DataError, match="cannot be loaded"):
        HuggingFace(path=str(tmp_path)).read()


def test_names_on_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name of which there is no folder here is the Hub's, from wherever it is read."""
    monkeypatch.chdir(tmp_path)
    asked: list[str] = []

    def load(name: str) -> None:
        asked.append(name)
        raise FileNotFoundError

    monkeypatch.setattr(datasets, "load_dataset", load)
    named = HuggingFace(path="someone/digits-2.0")
    assert named.resolve_path() == named
    with pytest.raises(DataError, match="someone/digits-2.0 cannot be loaded"):
        named.read()
    assert asked == ["someone/digits-2.0"]
    (tmp_path / "someone" / "digits-2.0").mkdir(parents=True)
    assert named.resolve_path() == HuggingFace(path=str(tmp_path / "someone" / "digits-2.0"))


def encode(pixels: np.ndarray) -> bytes:
    """Return a picture's PNG."""
    stream = BytesIO()
    Image.fromarray(pixels).save(stream, "PNG")
    return stream.getvalue()


def plain_table(shape: str) -> pa.Table:
    """Return a table as other tools write it: encoded pictures, no metadata of Hugging Face."""
    pictures = [encode(pixels) for pixels in PIXELS]
    if shape == "struct":
        column = pa.array([{"bytes": picture, "path": None} for picture in pictures])
    else:
        column = pa.array(pictures, type=getattr(pa, shape)())
    return pa.table({"picture": column, "digit": pa.array([7, 3, 9, 7])})


def write_table(table: pa.Table, path: Path) -> None:
    """Write a table in the format of the file's name."""
    if path.suffix == ".parquet":
        pq.write_table(table, path)
        return
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)


@pytest.mark.parametrize("end", [".parquet", ".arrow"])
@pytest.mark.parametrize("shape", ["struct", "binary", "large_binary"])
def test_tables_of_encoded_pictures(tmp_path: Path, shape: str, end: str) -> None:
    """A file alone is the training part; a folder of files has parts by their names."""
    table = plain_table(shape)
    folder = tmp_path / "set"
    folder.mkdir()
    write_table(table, folder / f"train-0{end}")
    want = torch.from_numpy(PIXELS[:, None])
    data = HuggingFace(label_column="digit", path=f"{folder}/train-0{end}")
    train, test, *_ = data.read()
    assert torch.equal(train.x, want) and train.y.tolist() == [1, 0, 2, 1] and test is None
    write_table(table.slice(1), folder / f"test-0{end}")
    train, test, *_ = read_hugging_face(data.model_copy(update={"path": str(folder)}))
    assert torch.equal(train.x, want) and test is not None and torch.equal(test.x, want[1:])


def test_a_parquet_file_of_hugging_face(tmp_path: Path) -> None:
    """Types are in its metadata: no other key is needed; mixed pictures are told."""
    mixed = [Image.fromarray(PIXELS[0]), Image.fromarray(PIXELS[1]).convert("RGBA").resize((9, 9))]
    features = datasets.Features({"picture": datasets.Image(), "kind": FEATURES["kind"]})
    table = datasets.Dataset.from_dict({"picture": mixed, "kind": [0, 1]}, features=features)
    table.to_parquet(tmp_path / "all.parquet")
    data = HuggingFace(path=str(tmp_path / "all.parquet"), size=4)
    source = read_source(data)
    assert source.train.x.shape == (2, 3, 4, 4) and source.classes == 2
    assert source.notes == (
        "2 of 2 classes from 4x5 to 9x9 pixels, resized to 4x4",
        "1 grey taken as colour",
    )


def test_tables_that_cannot_be_used(tmp_path: Path) -> None:
    """No label named, two columns of bytes, no row, a file of another kind, damage."""
    plain = plain_table("binary")
    doubled = plain.append_column("other", plain["picture"])
    for name, table, column, message in (
        (
            "a",
            plain.append_column("year", plain["digit"]),
            "none",
            "2 columns of labels among .*set data.label-column",
        ),
        ("b", doubled, "digit", "2 columns of pictures among"),
        ("c", plain.slice(4), "digit", "has no rows|cannot be loaded"),
    ):
        path = tmp_path / f"{name}.parquet"
        write_table(table, path)
        data = HuggingFace(path=str(path), label_column=column)
        with pytest.raises(DataError, match=message):
            data.read()
    (tmp_path / "d.parquet").write_bytes(b"PAR1 is not all")
    (tmp_path / "d.csv").write_text("picture,digit")
    for name, message in (("d.parquet", "cannot be loaded"), ("d.csv", "in .parquet or .arrow")):
        with pytest.raises(DataError, match=message):
            HuggingFace(path=str(tmp_path / name)).read()


def test_validation_is_the_test_part_where_there_is_no_other(tmp_path: Path) -> None:
    """And is left out where there is; so is what no key names. Each is told."""
    data = saved(tmp_path / "two", {"train": rows(4), "validation": rows(3)})
    _, test, *_, notes, _, _ = read_source(data)
    assert test is not None and test.y.tolist() == [0, 1, 1]
    assert notes == ("the 3 of split validation are the test part",)
    parts = {"train": rows(4), "validation": rows(3), "test": rows(2), "extra": rows(1)}
    _, test, *_, notes, _, _ = read_source(saved(tmp_path / "four", parts))
    assert test is not None and len(test.y) == 2
    assert notes == ("left out: the 1 of split extra", "left out: the 3 of split validation")


def test_a_test_part_of_hidden_labels_is_left_out(tmp_path: Path) -> None:
    """-1 each, as publishers of competitions write it."""
    hidden = rows(2).map(lambda row: {"kind": -1}, features=FEATURES)
    parts = {"train": rows(4), "validation": rows(3), "test": hidden}
    _, test, *_, notes, _, _ = read_source(saved(tmp_path, parts))
    assert test is not None and test.y.tolist() == [0, 1, 1]
    assert notes == (
        "the 3 of split validation are the test part",
        "left out: the 2 of split test",
    )


def test_the_only_column_of_whole_numbers_is_the_label(tmp_path: Path) -> None:
    """Where nothing else says which; it is told."""
    write_table(plain_table("binary"), tmp_path / "a.parquet")
    train, *_, notes, _, _ = read_source(HuggingFace(path=str(tmp_path / "a.parquet")))
    assert train.y.tolist() == [1, 0, 2, 1]
    assert notes == ("labels are the 3 numbers of column digit",)


@pytest.mark.parametrize("path", ["set/train.parquet", "set"])
def test_label_names_that_occur_twice(tmp_path: Path, path: str) -> None:
    """They are told apart by their number, and named; the library refuses them."""
    names = ["crane", "dog", "crane"]
    columns = {"picture": {"_type": "Image"}, "digit": {"_type": "ClassLabel", "names": names}}
    table = pa.table(
        {"picture": plain_table("struct")["picture"], "digit": pa.array([0, 1, 2, 1])}
    ).replace_schema_metadata({"huggingface": json.dumps({"info": {"features": columns}})})
    (tmp_path / "set").mkdir()
    write_table(table, tmp_path / "set" / "train.parquet")
    train, *_, notes, _, _ = read_source(HuggingFace(path=str(tmp_path / path)))
    assert train.y.tolist() == [0, 1, 2, 1]
    assert notes == ("label names that occur more than once are told apart: crane (0), crane (2)",)


@pytest.mark.skipif(not SAMPLE.is_dir(), reason="no folder ../shared/data/imagenet-sample")
def test_a_sample_of_imagenet(tmp_path: Path) -> None:
    """Two cranes and two maillots among a thousand classes, one photograph each."""
    train, *_, notes, _, _ = read_source(HuggingFace(path=str(SAMPLE), size=8))
    assert sorted(train.y.tolist()) == list(range(1000))
    assert "crane (134), crane (517), maillot (638), maillot (639)" in notes[0]


def test_a_damaged_data_set_is_refused(tmp_path: Path) -> None:
    """Its files are JSON and Arrow, and each is damaged in its own way."""
    data = saved(tmp_path, {"train": rows(4)})
    for path in sorted((tmp_path / "set").rglob("*.*")):
        whole = path.read_bytes()
        for raw in (b"", b"[]", b"\xff" * 50, whole[: len(whole) // 2]):
            path.write_bytes(raw)
            with pytest.raises(DataError, match="cannot be (loaded|read)"):
                read_source(data)
        path.write_bytes(whole)
