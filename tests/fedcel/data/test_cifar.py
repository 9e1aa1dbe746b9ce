"""CIFAR in its binary version: what is read back, and what is refused."""

import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from fedcel.data import Cifar, NodeDataSettings, load_splits, read_source
from fedcel.errors import DataError

PIXELS = np.random.default_rng(0).integers(0, 256, (7, 3, 32, 32), dtype=np.uint8)


def records(start: int, labels: list[list[int]]) -> bytes:
    """Return images from this one on, each with its label bytes before its pixels."""
    return b"".join(
        bytes(label) + PIXELS[start + place].tobytes() for place, label in enumerate(labels)
    )


def write_ten(folder: Path) -> Cifar:
    """Write the six files of CIFAR-10, two images in the first, one in each of the others."""
    folder.mkdir(exist_ok=True)
    (folder / "data_batch_1.bin").write_bytes(records(0, [[1], [0]]))
    for number in range(2, 6):
        (folder / f"data_batch_{number}.bin").write_bytes(records(number, [[number % 2]]))
    (folder / "test_batch.bin").write_bytes(records(6, [[1]]))
    (folder / "batches.meta.txt").write_text("airplane\nautomobile\n")
    return Cifar(path=str(folder))


def test_cifar_10(tmp_path: Path) -> None:
    """Batches one after the other, red before green before blue, rows before columns."""
    source = read_source(write_ten(tmp_path))
    want = torch.from_numpy(PIXELS)
    assert torch.equal(source.train.x, want[:6]) and source.train.y.tolist() == [1, 0, 0, 1, 0, 1]
    assert source.test is not None and torch.equal(source.test.x, want[6:])
    assert source.test.y.tolist() == [1] and source.classes == 2
    assert source.class_names == ("airplane", "automobile")
    (tmp_path / "batches.meta.txt").write_text("airplane\n")
    assert read_source(Cifar(path=str(tmp_path))).class_names == ()  # one name for two classes


def test_cifar_100(tmp_path: Path) -> None:
    """The fine label, behind the coarse one."""
    (tmp_path / "train.bin").write_bytes(records(0, [[9, 99], [4, 0]]))
    (tmp_path / "test.bin").write_bytes(records(2, [[9, 99]]))
    train, test, *_ = Cifar(path=str(tmp_path)).read()
    assert train.y.tolist() == [99, 0] and test.y.tolist() == [99]
    assert torch.equal(train.x[1, 2], torch.from_numpy(PIXELS[1, 2]))


def test_a_node_reads_its_training_files(tmp_path: Path) -> None:
    """And no other: the test file is damaged."""
    data = write_ten(tmp_path)
    (tmp_path / "test_batch.bin").write_bytes(b"damaged")
    fits = {"holder": 0, "shape": (3, 32, 32), "classes": 2}
    node = NodeDataSettings.model_validate({"source": data, **fits})
    assert load_splits(node, 2, 0).clients[0].y.tolist() == [1, 0, 0, 1, 0, 1]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda raw: raw[:-1], "has 6145 bytes, must be a multiple of 3073"),
        (lambda raw: b"", "has 0 bytes, must be"),
        (lambda raw: bytes([10]) + raw[1:], "go up to 10, must be below 10"),
        (None, "data_batch_1.bin cannot be read .*copy the file there"),
    ],
)
def test_damage_is_named(
    tmp_path: Path, damage: Callable[[bytes], bytes] | None, message: str
) -> None:
    """Cut off, empty, a label too large, missing: the file, what is allowed, the remedy."""
    data, path = write_ten(tmp_path), tmp_path / "data_batch_1.bin"
    raw = path.read_bytes()
    path.unlink()
    if damage:
        path.write_bytes(damage(raw))
    with pytest.raises(DataError, match=message):
        data.read()


def test_pickles_are_not_read(tmp_path: Path) -> None:
    """The Python version is refused with the download to take."""
    (tmp_path / "data_batch_1").write_bytes(pickle.dumps({b"data": [0]}))
    with pytest.raises(DataError, match=r"Python version.*data_batch_1.*cifar-10-binary.tar.gz"):
        Cifar(path=str(tmp_path)).read()


def test_nothing_to_read(tmp_path: Path) -> None:
    """No path, an archive in place of a folder, a folder of something else."""
    (tmp_path / "cifar-10-binary.tar.gz").touch()
    for path in ("none", str(tmp_path / "cifar-10-binary.tar.gz")):
        with pytest.raises(DataError, match="is no folder; unpack cifar-10-binary.tar.gz"):
            Cifar(path=path).read()
    (tmp_path / "cifar-10-batches-bin").mkdir()
    with pytest.raises(DataError, match="among .*cifar-10-batches-bin.*the folder that holds"):
        Cifar(path=str(tmp_path)).read()
