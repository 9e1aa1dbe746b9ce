"""Folders of pictures: what is read back, and what is refused."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fedcel.data import ImageFolder, Source, read_source
from fedcel.errors import DataError

FACES = Path(__file__).parents[4] / "shared" / "data" / "att-faces"
GREY = np.arange(20, dtype=np.uint8).reshape(5, 4) * 12
RED = np.zeros((5, 4, 3), dtype=np.uint8) + np.array([200, 0, 0], dtype=np.uint8)


def save(path: Path, pixels: np.ndarray, mode: str | None = None) -> None:
    """Write a picture in the format of its name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    picture = Image.fromarray(pixels)
    (picture.convert(mode) if mode else picture).save(path)


def small(root: Path) -> ImageFolder:
    """Write three grey pictures of two classes, and what is to be left out."""
    save(root / "b" / "2.png", GREY)
    save(root / "a" / "10.pgm", GREY + 1)
    save(root / "b" / "1.bmp", GREY + 2)
    (root / "README").write_text("beside the classes")
    (root / "a" / ".DS_Store").write_bytes(b"hidden")
    (root / ".git").mkdir()
    return ImageFolder(path=str(root))


def test_classes_and_files_in_the_order_of_their_names(tmp_path: Path) -> None:
    """As bytes, rows before columns, in several formats."""
    train, test, classes, holders, _, class_names, _ = read_source(small(tmp_path))
    assert class_names == ("a", "b")
    assert test is None and holders is None and classes == 2 and train.y.tolist() == [0, 1, 1]
    want = np.stack([GREY + 1, GREY + 2, GREY])[:, None]
    assert torch.equal(train.x, torch.from_numpy(want))


def test_pictures_alone_are_for_measuring_only(tmp_path: Path) -> None:
    """Each is of its own class; nobody trains on them."""
    for number in range(3):
        save(tmp_path / f"{number}.png", GREY + number)
    data = ImageFolder(path=str(tmp_path))
    train, test, classes, *_ = read_source(data, is_numbered_anew=True)
    assert test is None and classes == 3 and train.y.tolist() == [0, 1, 2]
    assert torch.equal(train.x[2, 0], torch.from_numpy(GREY + 2))
    with pytest.raises(DataError, match="has images without labels, must have one folder a class"):
        read_source(data)


def test_training_and_test_trees(tmp_path: Path) -> None:
    """A class may lack test images, not training images."""
    small(tmp_path / "train")
    save(tmp_path / "test" / "b" / "1.png", GREY)
    data = ImageFolder(path=str(tmp_path))
    train, test, *_ = data.read()
    assert test is not None and test.y.tolist() == [1] and len(train.y) == 3
    save(tmp_path / "test" / "c" / "1.png", GREY)
    with pytest.raises(DataError, match=r"no training image is of \['c'\]"):
        data.read()


def test_second_level_names_holders(tmp_path: Path) -> None:
    """A holder is the same in every class; all images have one or none has."""
    for name in ("a/zoe/1.png", "a/ann/1.png", "b/zoe/1.png", "b/ann/2.png"):
        save(tmp_path / name, GREY)
    data = ImageFolder(path=str(tmp_path))
    train, _, holders, *_ = data.read()
    assert train.y.tolist() == [0, 0, 1, 1] and holders is not None
    assert holders.tolist() == [0, 1, 0, 1]
    save(tmp_path / "a" / "loose.png", GREY)
    with pytest.raises(DataError, match="4 of 5 images are in a folder of their holder"):
        data.read()
    save(tmp_path / "b" / "ann" / "deep" / "1.png", GREY)
    with pytest.raises(DataError, match="deep is too deep, must be CLASS/HOLDER/IMAGE"):
        data.read()


def test_grey_and_colour_of_unequal_sizes(tmp_path: Path) -> None:
    """Colour for all, also where it is in the test part alone; sizes need data.size."""
    small(tmp_path / "train")
    save(tmp_path / "test" / "b" / "3.png", RED)
    data = ImageFolder(path=str(tmp_path))
    source = read_source(data)
    assert source.test is not None and source.train.x.shape == (3, 3, 5, 4)
    assert source.notes == ("3 grey taken as colour", "left out, beside the class folders: README")
    save(tmp_path / "test" / "b" / "4.png", RED[:4])
    with pytest.raises(DataError, match="1 of 5 pictures differ in size .*4.png of 4x4; set data"):
        data.read()
    train, test, _, notes, *_ = data.model_copy(update={"grey": True, "size": 4}).read()
    assert test is not None and train.x.shape == (3, 1, 4, 4) and len(test.y) == 2
    assert (test.x == round(0.299 * 200)).all()
    assert notes[0] == "5 of 2 classes from 4x4 to 4x5 pixels, resized to 4x4"


def test_what_systems_leave_behind_is_left_out(tmp_path: Path) -> None:
    """In folders of classes and beside them; names in any letters and alphabet, and links."""
    data = small(tmp_path)
    before, *_ = data.read()
    for name in ("a/Thumbs.db", "a/desktop.ini", "b/._1.png", "__MACOSX/a/1.png", "b/@eaDir/x.jpg"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"nothing")
    assert torch.equal(data.read().train.x, before.x)
    save(tmp_path / "\u9ce5" / "\u00e4 1.png", GREY + 3)
    (tmp_path / "\u00c4rger").symlink_to(tmp_path / "a")
    source = read_source(data)
    assert source.classes == 4 and source.train.y.tolist() == [0, 1, 1, 2, 3]
    assert torch.equal(source.train.x[3], source.train.x[0])


@pytest.mark.parametrize("names", [("train", "val"), ("test", "train", "validation"), ("Train",)])
def test_parts_are_not_taken_for_classes(tmp_path: Path, names: tuple[str, ...]) -> None:
    """Their classes would be taken for holders."""
    for name in names:
        small(tmp_path / name)
    with pytest.raises(DataError, match="are parts, not classes; must be 'train' and 'test'"):
        ImageFolder(path=str(tmp_path)).read()


def test_a_folder_that_cannot_be_listed_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not every folder may be read by everyone."""
    data = small(tmp_path)

    def refuse(self: Path) -> None:
        raise PermissionError("Permission denied")

    monkeypatch.setattr(Path, "iterdir", refuse)
    with pytest.raises(DataError, match="cannot be listed .*Permission denied.*; allow to read it"):
        data.read()


def test_missing_things_are_named(tmp_path: Path) -> None:
    """No path, no folder, no class, one class, an empty class."""
    for path in ("none", str(tmp_path / "nowhere")):
        with pytest.raises(DataError, match="is no folder; give one with a folder per class"):
            ImageFolder(path=path).read()
    data = ImageFolder(path=str(tmp_path))
    with pytest.raises(DataError, match="has 0 folders with 0 images"):
        data.read()
    save(tmp_path / "a" / "1.png", GREY)
    with pytest.raises(DataError, match="has 1 folders with 1 images"):
        data.read()
    (tmp_path / "b").mkdir()
    save(tmp_path / "c" / "1.png", GREY)
    with pytest.raises(DataError, match=r"without an image: \['b'\], 1 of 3"):
        read_source(data)


@pytest.mark.skipif(not FACES.is_dir(), reason="no folder ../shared/data/att-faces")
def test_att_faces() -> None:
    """Forty people, ten images each, 92 pixels wide, 112 high."""
    faces = ImageFolder(path=str(FACES)).read()
    assert faces.train.x.shape == (400, 1, 112, 92)
    assert faces.test is None and faces.holders is None
    assert faces.train.y.bincount().tolist() == [10] * 40


def test_names_that_are_no_utf8(tmp_path: Path) -> None:
    """Classes, files and strays of an old archive: read, and named in text that can be written."""
    data = small(tmp_path)
    odd = os.fsdecode(b"f\xfcr")
    save(tmp_path / odd / f"{odd}.png", GREY)
    (tmp_path / f"{odd}.txt").touch()
    source = read_source(data)
    assert source.classes == 3 and source.train.y.tolist() == [0, 1, 1, 2]
    assert source.notes == ("left out, beside the class folders: README, f\\udcfcr.txt",)
    names = data.list_classes()
    assert names == ["a", "b", "f\\udcfcr"]
    assert data.read_training(names).train.y.tolist() == [0, 1, 1, 2]
    (tmp_path / odd / f"{odd}.png").write_bytes(b"damaged")
    with pytest.raises(DataError, match="is no image that Pillow reads"):
        read_source(data)


def test_what_the_system_refuses_names_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name too long, and a folder whose files may be listed but not looked at."""
    for source in ("image-folder", "idx", "cifar", "npz", "huggingface"):
        with pytest.raises(DataError, match="xxxx.* cannot be (read|loaded) .*name too"):
            read_source(Source.model_validate({"source": source, "path": "x" * 300}))
    data = small(tmp_path)

    def refuse(self: Path) -> bool:
        raise PermissionError("Permission denied")

    monkeypatch.setattr(Path, "is_file", refuse)
    with pytest.raises(DataError, match="cannot be read .*PermissionError"):
        read_source(data)


def test_strays_are_told_everywhere(tmp_path: Path) -> None:
    """Beside both parts, beside the classes of each, and in a node's own folder."""
    for part in ("train", "test"):
        small(tmp_path / part)
        (tmp_path / part / "README").rename(tmp_path / part / f"{part}.csv")
    (tmp_path / "all.csv").touch()
    notes = read_source(ImageFolder(path=str(tmp_path))).notes
    assert [note.rpartition(" ")[2] for note in notes] == ["all.csv", "train.csv", "test.csv"]
    node = ImageFolder(path=str(tmp_path / "train"))
    (note,) = node.read_training(["a", "b"]).notes
    assert note == "left out, beside the class folders: train.csv"


@pytest.mark.parametrize(
    ("name", "source"),
    [("train.parquet", "huggingface"), ("data_batch_1.bin", "cifar")],
)
def test_files_of_another_source_name_it(name: str, source: str, tmp_path: Path) -> None:
    """A data set that is one file, not a tree of pictures."""
    (tmp_path / name).touch()
    with pytest.raises(DataError, match=f"has 0 folders.*data.source={source} for the files"):
        ImageFolder(path=str(tmp_path)).read()
