"""Numpy archives: each layout, and each way an array can be wrong."""

from pathlib import Path

import numpy as np
import pytest
import torch

from fedcel.data import Npz, read_source, to_floats
from fedcel.errors import DataError

CIFAR = Path(__file__).parents[4] / "shared" / "data" / "cifar10-subset"
X = np.arange(4 * 5 * 6 * 3, dtype=np.uint8).reshape(4, 5, 6, 3)
Y = np.array([0, 1, 2, 1])


def write(folder: Path, **arrays: np.ndarray) -> Npz:
    """Write an archive; these arrays over sound ones, None leaves one out."""
    sound = {"x_train": X, "y_train": Y, "x_test": X[:2], "y_test": Y[:2]} | arrays
    path = folder / "images.npz"
    np.savez(path, **{name: array for name, array in sound.items() if array is not None})
    return Npz(path=str(path))


@pytest.mark.parametrize("kind", ["bytes", "floats", "channels first", "column of labels"])
def test_layouts_agree(tmp_path: Path, kind: str) -> None:
    """The same images however they were written."""
    x, y = X, Y
    if kind == "floats":
        x = X / 255
    if kind == "channels first":
        x = X.transpose(0, 3, 1, 2)
    if kind == "column of labels":
        y = Y[:, None].astype(np.uint8)
    train, test, classes, *_ = read_source(
        write(tmp_path, x_train=x, y_train=y, x_test=x[:2], y_test=y[:2])
    )
    want = torch.from_numpy(X.transpose(0, 3, 1, 2).astype(np.float32) / np.float32(255))
    assert (train.x.dtype == torch.uint8) is (kind != "floats")
    torch.testing.assert_close(to_floats(train.x), want, rtol=0, atol=1e-7)
    assert test is not None and torch.equal(test.x, train.x[:2]) and classes == 3
    assert train.y.tolist() == Y.tolist() and test.y.tolist() == [0, 1]


def test_grey_images_and_no_test_part(tmp_path: Path) -> None:
    """(N, H, W) has one channel."""
    train, test, *_ = write(tmp_path, x_train=X[..., 0], x_test=None, y_test=None).read()
    assert train.x.shape == (4, 1, 5, 6) and test is None
    assert train.x[2, 0, 3, 4].item() == X[2, 3, 4, 0]


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"y_test": None}, "no array y_test, there are: x_test, x_train, y_train;"),
        ({"x_train": None}, "no array x_train"),
        (dict.fromkeys(("x_train", "x_test", "y_test")) | {"images": Y}, "are: images, y_train;"),
        ({"x_train": np.where(X.max() == X, np.nan, X / 255)}, "pixels of image [0-9]+ are NaN"),
        ({"x_train": X.astype(np.int32)}, "x_train is int32, must be uint8"),
        ({"x_train": X.astype(np.float64)}, r"training part: pixels are in \[0.0, 255.0\]"),
        ({"x_train": X / 255 - 1}, "pixels are in"),
        ({"x_train": X[:, :3]}, r"has shape \(4, 3, 6, 3\), must be"),
        ({"x_train": X[..., :2]}, r"has shape \(4, 5, 6, 2\), must be"),
        ({"x_train": X[0, 0]}, "labels? for each of x_train|must be integers"),
        ({"x_train": np.uint8(3)}, "x_train is a single value, must be images"),
        ({"y_train": np.int64(3)}, r"y_train is int64 \(\), must be integers of shape \(4,\)"),
        ({"x_train": X[:0], "y_train": Y[:0]}, "N > 0"),
        ({"y_train": Y[:3]}, r"y_train is int64 \(3,\), must be integers of shape \(4,\)"),
        ({"y_train": Y / 2}, "y_train is float64"),
        ({"y_train": Y.astype(object)}, "cannot be read .*allow_pickle"),
        ({"y_train": Y * 2}, r"training part: .*\[1, 3\] do not occur"),
        ({"y_test": Y[:2] + 8}, r"test part: labels are in 8\.\.9, must be in 0\.\.2"),
    ],
)
def test_wrong_arrays_are_refused(
    tmp_path: Path, arrays: dict[str, np.ndarray], message: str
) -> None:
    """The error names file and array or part, what was found and what is allowed."""
    data = write(tmp_path, **arrays)
    with pytest.raises(DataError, match=message) as caught:
        read_source(data)
    assert data.path in str(caught.value)


def test_other_files_are_refused(tmp_path: Path) -> None:
    """No path, a folder, one array alone, an archive cut short or damaged."""
    data = write(tmp_path)
    for path in ("none", str(tmp_path)):
        with pytest.raises(DataError, match="is no file; give the .npz file"):
            Npz(path=path).read()
    whole = Path(data.path).read_bytes()
    np.save(tmp_path / "one.npy", X)
    alone = (tmp_path / "one.npy").read_bytes()
    damaged = whole[:400] + bytes(50) + whole[450:]
    for raw in (b"", alone, whole[:-40], whole[:200], damaged):
        Path(data.path).write_bytes(raw)
        with pytest.raises(DataError, match="cannot be read .*numpy.savez"):
            data.read()


@pytest.mark.skipif(not CIFAR.is_dir(), reason="no folder ../shared/data/cifar10-subset")
def test_cifar_subset() -> None:
    """Sizes as documented; ten classes of about a tenth each."""
    path = CIFAR / "cifar10_first4000_test1000.npz"
    train, test, *_ = Npz(path=str(path)).read()
    assert test is not None and train.x.shape == (4000, 3, 32, 32) and len(test.y) == 1000
    assert train.y.bincount().float().div(400).sub(1).abs().max() < 0.15


def test_arrays_that_are_left_out_are_told(tmp_path: Path) -> None:
    """Nothing is dropped without a word."""
    data = write(tmp_path, x_val=X, y_val=Y)
    assert read_source(data).notes == ("arrays that are left out: x_val, y_val",)


@pytest.mark.parametrize("top", [2_000_000_000, 10**12, 2**63 - 1])
def test_labels_of_people_are_counted_by_what_they_are(tmp_path: Path, top: int) -> None:
    """Two labels are two, however large: 2e9 once took 16 GB."""
    data = write(tmp_path, y_train=np.array([0, top, 7, top]), y_test=np.array([top, 9]))
    with pytest.raises(DataError, match=rf"labels go up to {top} but \[1, 2, 3, 4, 5\] do not"):
        read_source(data)
    train, test, classes, *_ = read_source(data, is_numbered_anew=True)
    assert train.y.tolist() == [0, 3, 1, 3] and classes == 4
    assert test is not None and test.y.tolist() == [3, 2]


@pytest.mark.parametrize("dtype", ["u2", "u4", "u8", ">u4"])
def test_labels_of_any_whole_type(tmp_path: Path, dtype: str) -> None:
    """Unsigned ones as well, and those of another machine's order of bytes."""
    assert read_source(write(tmp_path, y_train=Y.astype(dtype))).train.y.tolist() == Y.tolist()
    with pytest.raises(
        DataError, match=r"y_train hold 18446744073709551615, must be .*below 2\^63"
    ):
        read_source(write(tmp_path, y_train=np.full(4, 2**64 - 1, dtype="u8")))


@pytest.mark.parametrize("place", [6, 8])
def test_archives_that_zipfile_cannot_open_are_refused(tmp_path: Path, place: int) -> None:
    """Marked as encrypted, or of an unknown compression."""
    data = write(tmp_path)
    raw = bytearray(Path(data.path).read_bytes())
    for start in (0, raw.index(b"PK\x01\x02") + 2):
        raw[start + place] |= 0x61
    Path(data.path).write_bytes(raw)
    with pytest.raises(DataError, match="images.npz cannot be read .*numpy.savez"):
        data.read()
