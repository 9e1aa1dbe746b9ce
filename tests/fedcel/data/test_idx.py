"""MNIST-format folders: what is read back, and each way a file can be damaged."""

import gzip
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fedcel.data import Idx, read_source, to_floats
from fedcel.errors import DataError

FASHION = Path(__file__).parents[4] / "shared" / "data" / "fashion-mnist"
PIXELS = np.arange(5 * 3 * 2, dtype=np.uint8).reshape(5, 3, 2) * 8
LABELS = np.array([0, 1, 2, 1, 0], dtype=np.uint8)
IMAGES = "train-images-idx3-ubyte"


def idx(array: np.ndarray) -> bytes:
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


def write(folder: Path) -> Idx:
    """Write a folder of four small files, two of them compressed."""
    (folder / IMAGES).write_bytes(idx(PIXELS))
    (folder / "train-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(LABELS)))
    (folder / "t10k-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(PIXELS[:2])))
    (folder / "t10k-labels-idx1-ubyte").write_bytes(idx(LABELS[:2]))
    return Idx(path=str(folder))


def test_reads_back_what_was_written(tmp_path: Path) -> None:
    """Plain and compressed files, as bytes, rows before columns."""
    train, test, *_ = write(tmp_path).read()
    assert train.x.shape == (5, 1, 3, 2) and test.x.shape == (2, 1, 3, 2)
    assert train.x.numpy().dtype == np.uint8 and (train.x[:, 0].numpy() == PIXELS).all()
    assert train.y.tolist() == [0, 1, 2, 1, 0] and test.y.tolist() == [0, 1]


def squeeze(raw: bytes) -> bytes:
    """Return compressed bytes whose first block, after ten bytes of header, is of no known type."""
    packed = bytearray(gzip.compress(raw))
    packed[10] |= 6
    return bytes(packed)


@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        (IMAGES, lambda raw: raw[:-1], "has 45 bytes, must have 46"),
        (IMAGES, lambda raw: raw + b"x", "has 47 bytes or more, must have 46"),
        (IMAGES, lambda raw: raw[:9], "ends inside its header, after 9 bytes"),
        (IMAGES, lambda raw: b"", "begins with nothing"),
        (IMAGES, lambda raw: b"\x89PNG" + raw, "begins with 89504e47, must begin with 00000803"),
        (IMAGES, lambda raw: idx(LABELS), "3 dimensions"),
        (IMAGES, lambda raw: raw[:2] + b"\x0d" + raw[3:], "begins with 00000d03"),
        (IMAGES, lambda raw: struct.pack(">HBB3I", 0, 8, 3, *[2**32 - 1] * 3), "has 16 bytes"),
        (IMAGES, lambda raw: idx(PIXELS[:0]), "nothing is in it"),
        (IMAGES, lambda raw: idx(PIXELS[:4]), "has 4 images, .* has 5 labels"),
        (
            IMAGES,
            lambda raw: idx(PIXELS[:, :2]),
            r"test images are \(1, 3, 2\), must be \(1, 2, 2\)",
        ),
        (f"{IMAGES}.gz", squeeze, "cannot be read"),
        (f"{IMAGES}.gz", lambda raw: gzip.compress(raw)[:-9], "cannot be read"),
        (f"{IMAGES}.gz", lambda raw: raw, "cannot be read"),
    ],
)
def test_damaged_images_are_refused(
    tmp_path: Path, name: str, damage: Callable[[bytes], bytes], message: str
) -> None:
    """The error names the file, what was found and what is allowed."""
    data = write(tmp_path)
    raw = (tmp_path / IMAGES).read_bytes()
    (tmp_path / IMAGES).unlink()
    (tmp_path / name).write_bytes(damage(raw))
    with pytest.raises(DataError, match=message) as caught:
        read_source(data)
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize(
    ("name", "labels", "message"),
    [
        ("train-labels-idx1-ubyte.gz", [0, 1, 3, 1, 0], r"training part: .*\[2\] do not occur"),
        ("t10k-labels-idx1-ubyte", [0, 9], r"test part: .*0\.\.9, must be in 0\.\.2"),
    ],
)
def test_labels_out_of_range(tmp_path: Path, name: str, labels: list[int], message: str) -> None:
    """The folder and the part with the wrong labels are named."""
    data = write(tmp_path)
    raw = idx(np.array(labels, dtype=np.uint8))
    (tmp_path / name).write_bytes(gzip.compress(raw) if name.endswith("gz") else raw)
    with pytest.raises(DataError, match=f"{tmp_path}: {message}"):
        read_source(data)


def test_missing_things_are_named(tmp_path: Path) -> None:
    """No path, no folder, a file for a folder, one file of four."""
    data = write(tmp_path)
    for path in ("none", str(tmp_path / "nowhere"), str(tmp_path / IMAGES)):
        with pytest.raises(DataError, match="is no folder"):
            Idx(path=path).read()
    (tmp_path / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(DataError, match="no file t10k-labels-idx1-ubyte or .*train-images"):
        data.read()


def test_names_with_a_dot(tmp_path: Path) -> None:
    """Many mirrors spell them so."""
    data = write(tmp_path)
    want = data.read()[:2]
    for path in sorted(tmp_path.iterdir()):
        path.rename(tmp_path / path.name.replace("-idx", ".idx"))
    assert all((got.x == parts.x).all() for got, parts in zip(data.read()[:2], want, strict=True))


def test_other_names_are_named(tmp_path: Path) -> None:
    """Files of another data set in the same format: which, and what to do."""
    data = write(tmp_path)
    for path in sorted(tmp_path.iterdir()):
        path.rename(tmp_path / f"emnist-letters-{path.name.replace('t10k', 'test')}")
    with pytest.raises(DataError, match=r"no file train-images.*; rename .*emnist-letters-train-i"):
        data.read()


@pytest.mark.skipif(not FASHION.is_dir(), reason="no folder ../shared/data/fashion-mnist")
def test_fashion_mnist() -> None:
    """The published counts and the published mean pixel, .2860."""
    train, test, *_ = Idx(path=str(FASHION)).read()
    assert train.x.shape == (60000, 1, 28, 28) and test.x.shape == (10000, 1, 28, 28)
    assert train.y.bincount().tolist() == [6000] * 10
    assert test.y.bincount().tolist() == [1000] * 10
    assert abs(to_floats(train.x).mean().item() - 0.2860) < 5e-5


def test_a_bomb_is_not_read_to_its_end(tmp_path: Path) -> None:
    """A header of 46 bytes before a hundred million, and one that claims more than there can be."""
    data = write(tmp_path)
    (tmp_path / IMAGES).unlink()
    packed = tmp_path / f"{IMAGES}.gz"
    packed.write_bytes(gzip.compress(idx(PIXELS) + bytes(10**8), 1))
    tracemalloc.start()
    with pytest.raises(DataError, match="has 47 bytes or more, must have 46"):
        data.read()
    packed.write_bytes(gzip.compress(struct.pack(">HBB3I", 0, 8, 3, *[2**32 - 1] * 3)))
    with pytest.raises(DataError, match=r"has 16 bytes, must have 79228162458924105385300197391 "):
        data.read()
    assert tracemalloc.get_traced_memory()[1] < 10**7
    tracemalloc.stop()
