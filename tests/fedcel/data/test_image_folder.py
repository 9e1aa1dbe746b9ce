"""Folders of pictures: what is read back, and what is refused."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fedcel.data import read_source
from fedcel.data.image_folder import read_image_folder
from fedcel.errors import DataError
from fedcel.settings import DataSettings

FACES = Path(__file__).parents[4] / "shared" / "data" / "att-faces"
GREY = np.arange(20, dtype=np.uint8).reshape(5, 4) * 12
RED = np.zeros((5, 4, 3), dtype=np.uint8) + np.array([200, 0, 0], dtype=np.uint8)


def save(path: Path, pixels: np.ndarray, mode: str | None = None) -> None:
    """Write a picture in the format of its name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    picture = Image.fromarray(pixels)
    (picture.convert(mode) if mode else picture).save(path)


def small(root: Path) -> DataSettings:
    """Write three grey pictures of two classes, and what is to be left out."""
    save(root / "b" / "2.png", GREY)
    save(root / "a" / "10.pgm", GREY + 1)
    save(root / "b" / "1.bmp", GREY + 2)
    (root / "README").write_text("beside the classes")
    (root / "a" / ".DS_Store").write_bytes(b"hidden")
    (root / ".git").mkdir()
    return DataSettings(source="image-folder", path=str(root))


def test_classes_and_files_in_the_order_of_their_names(tmp_path: Path) -> None:
    """Bytes over 255, rows before columns, in several formats."""
    train, test, classes, holders, _ = read_source(small(tmp_path))
    assert test is None and holders is None and classes == 2 and train.y.tolist() == [0, 1, 1]
    want = np.stack([GREY + 1, GREY + 2, GREY])[:, None].astype(np.float32) / np.float32(255)
    assert torch.equal(train.x, torch.from_numpy(want))


def test_training_and_test_trees(tmp_path: Path) -> None:
    """A class may lack test images, not training images."""
    small(tmp_path / "train")
    save(tmp_path / "test" / "b" / "1.png", GREY)
    data = DataSettings(source="image-folder", path=str(tmp_path))
    train, test, *_ = read_image_folder(data)
    assert test is not None and test.y.tolist() == [1] and len(train.y) == 3
    save(tmp_path / "test" / "c" / "1.png", GREY)
    with pytest.raises(DataError, match=r"no training image is of \['c'\]"):
        read_image_folder(data)


def test_second_level_names_holders(tmp_path: Path) -> None:
    """A holder is the same in every class; all images have one or none has."""
    for name in ("a/zoe/1.png", "a/ann/1.png", "b/zoe/1.png", "b/ann/2.png"):
        save(tmp_path / name, GREY)
    data = DataSettings(source="image-folder", path=str(tmp_path))
    train, _, holders, _ = read_image_folder(data)
    assert train.y.tolist() == [0, 0, 1, 1] and holders is not None
    assert holders.tolist() == [0, 1, 0, 1]
    save(tmp_path / "a" / "loose.png", GREY)
    with pytest.raises(DataError, match="4 of 5 images are in a folder of their holder"):
        read_image_folder(data)
    save(tmp_path / "b" / "ann" / "deep" / "1.png", GREY)
    with pytest.raises(DataError, match="deep is too deep, must be CLASS/HOLDER/IMAGE"):
        read_image_folder(data)


def test_unequal_pictures_need_size_and_grey(tmp_path: Path) -> None:
    """The two that differ and both remedies are named; with these they are read."""
    data = small(tmp_path)
    save(tmp_path / "b" / "3.png", RED)
    with pytest.raises(
        DataError, match=r"3.png is \(3, 5, 4\), .*10.pgm is \(1, 5, 4\).*data.grey"
    ):
        read_image_folder(data)
    save(tmp_path / "b" / "4.png", RED[:4])
    with pytest.raises(DataError, match="set data.size"):
        read_image_folder(data.model_copy(update={"grey": True}))
    train, *_ = read_image_folder(data.model_copy(update={"grey": True, "size": 4}))
    assert train.x.shape == (5, 1, 4, 4)
    assert train.x[-1].unique().tolist() == pytest.approx([0.299 * 200 / 255], abs=1e-6)


def test_a_photograph_stands_upright(tmp_path: Path) -> None:
    """Orientation 6 of EXIF: turned by 90 degrees clockwise for viewing."""
    small(tmp_path)
    turned = Image.Exif()
    turned[0x0112] = 6
    Image.fromarray(np.rot90(GREY)).save(tmp_path / "a" / "0.png", exif=turned)
    train, *_ = read_image_folder(DataSettings(source="image-folder", path=str(tmp_path)))
    want = torch.from_numpy(GREY.astype(np.float32) / np.float32(255))
    assert torch.equal(train.x[0, 0], want)


@pytest.mark.parametrize(
    ("name", "mode", "message"),
    [("x.tif", "I", "mode I, must be of 1, L"), ("x.png", "RGBA", "without transparency")],
)
def test_other_modes_are_refused(tmp_path: Path, name: str, mode: str, message: str) -> None:
    """More than 8 bits would be cut off, what is behind transparency is not known."""
    data = small(tmp_path)
    save(tmp_path / "b" / name, RED, mode)
    with pytest.raises(DataError, match=message) as caught:
        read_image_folder(data)
    assert name in str(caught.value)


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    """No image at all, one cut short."""
    data = small(tmp_path)
    path = tmp_path / "b" / "1.png"
    save(path, np.random.default_rng(0).integers(0, 256, (30, 30), dtype=np.uint8))
    whole = path.read_bytes()
    for raw, message in ((b"text", "is no image"), (b"", "is no image"), (whole[:500], "1.png c")):
        path.write_bytes(raw)
        with pytest.raises(DataError, match=f"{message}.*remove it or copy it anew"):
            read_image_folder(data)


def test_missing_things_are_named(tmp_path: Path) -> None:
    """No path, no folder, no class, one class, an empty class."""
    for path in ("none", str(tmp_path / "nowhere")):
        with pytest.raises(DataError, match="is no folder; give one with a folder per class"):
            read_image_folder(DataSettings(source="image-folder", path=path))
    data = DataSettings(source="image-folder", path=str(tmp_path))
    with pytest.raises(DataError, match="has 0 folders with 0 images"):
        read_image_folder(data)
    save(tmp_path / "a" / "1.png", GREY)
    with pytest.raises(DataError, match="has 1 folders with 1 images"):
        read_image_folder(data)
    (tmp_path / "b").mkdir()
    save(tmp_path / "c" / "1.png", GREY)
    with pytest.raises(DataError, match=r"\[1\] do not occur|b has no image"):
        read_source(data)


@pytest.mark.skipif(not FACES.is_dir(), reason="no folder ../shared/data/att-faces")
def test_att_faces() -> None:
    """Forty people, ten images each, 92 pixels wide, 112 high."""
    train, test, holders, _ = read_image_folder(
        DataSettings(source="image-folder", path=str(FACES))
    )
    assert train.x.shape == (400, 1, 112, 92) and test is None and holders is None
    assert train.y.bincount().tolist() == [10] * 40
