"""A node's own images: all of them and nothing else, and what does not fit the net."""

import gzip
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fedcel.data import DataSettings, NodeDataSettings, Npz, load_splits
from fedcel.errors import DataError

X = np.arange(4 * 5 * 6, dtype=np.uint8).reshape(4, 5, 6)
Y = np.array([2, 0, 2, 0])
NAMES = ("ant", "bee", "cat")


def npz(folder: Path) -> Path:
    """Write an archive whose test part cannot be read."""
    path = folder / "own.npz"
    np.savez(path, x_train=X, y_train=Y, x_test=np.array([None]), y_test=Y[:1])
    return path


def idx(folder: Path) -> Path:
    """Write the two training files, and a test file that is damaged."""
    for name, array in (("images-idx3", X), ("labels-idx1", Y.astype(np.uint8))):
        head = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
        packed = gzip.compress(head + array.tobytes())
        (folder / f"train-{name}-ubyte.gz").write_bytes(packed)
    (folder / "t10k-images-idx3-ubyte").write_bytes(b"damaged")
    return folder


def pictures(folder: Path) -> Path:
    """Write a folder per class; this node has no bee."""
    for name in NAMES:
        (folder / name).mkdir()
    for number, (image, label) in enumerate(zip(X, Y, strict=True)):
        Image.fromarray(image).save(folder / NAMES[label] / f"{number}.png")
    return folder


def made(source: str, path: Path | str, **change: object) -> NodeDataSettings:
    """Return the settings of the second node of three."""
    names = NAMES if source == "image-folder" else ()
    fits = {"holder": 1, "shape": (1, 5, 6), "classes": 3, "names": names}
    return NodeDataSettings.model_validate({"source": source, "path": str(path), **fits, **change})


@pytest.mark.parametrize(
    ("source", "write"), [("npz", npz), ("idx", idx), ("image-folder", pictures)]
)
def test_all_training_images_and_nothing_else(
    tmp_path: Path, source: str, write: Callable[[Path], Path]
) -> None:
    """Labels keep their numbers though class 1 is absent; everyone else's images are empty."""
    splits = load_splits(made(source, write(tmp_path)), 3, 0)
    own, order = (
        splits.clients[1],
        np.argsort(Y if source == "image-folder" else Y * 0, kind="stable"),
    )
    assert own.y.tolist() == Y[order].tolist()
    assert torch.equal(own.x, torch.from_numpy(X[order][:, None]))
    others = (
        splits.clients[0],
        splits.clients[2],
        splits.validation,
        splits.auxiliary,
        splits.test,
    )
    assert (splits.shape, splits.classes, [len(x.y) for x in others]) == ((1, 5, 6), 3, [0] * 5)


def test_size_and_colour_as_the_operator_set_them(tmp_path: Path) -> None:
    """Colours of another size become what the net takes."""
    np.savez(tmp_path / "own.npz", x_train=np.stack([X[:, :, :5]] * 3, 3), y_train=Y)
    data = made("npz", tmp_path / "own.npz", size=8, grey=True, shape=(1, 8, 8))
    assert load_splits(data, 2, 0).clients[1].x.shape == (4, 1, 8, 8)


def test_grey_where_the_net_takes_colour(tmp_path: Path) -> None:
    """As grey pictures among others; the notes say it, and what resizing did."""
    data = made("image-folder", pictures(tmp_path), shape=(3, 8, 8), size=8)
    splits = load_splits(data, 2, 0)
    x = splits.clients[1].x
    assert x.shape == (4, 3, 8, 8) and torch.equal(x[:, 0], x[:, 2])
    assert splits.notes == (
        "4 of 3 classes of 6x5 pixels, resized to 8x8",
        "all grey, taken as colour",
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"path": "own.npz"}, "must be the absolute path"),
        ({"path": "/nowhere/own.npz"}, "must be the absolute path .* that exists"),
        ({"shape": (1, 28, 28)}, r"images are \(1, 5, 6\) .*the net takes \(1, 28, 28\)"),
        ({"classes": 2}, r"labels are in 0..2, must be in 0..1, the net's classes"),
        ({"source": "huggingface"}, "a node reads idx, cifar, npz, image-folder or"),
        ({"source": "image-folder"}, "0 folders of classes and a net of 3"),
        ({"source": "idx"}, "which is no folder"),
        ({"held_out_classes": 1}, "a node does not know which classes"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_refused(
    tmp_path: Path, change: dict[str, object], words: str
) -> None:
    keys = {"source": "npz", "path": npz(tmp_path), "names": (), **change}
    with pytest.raises(DataError, match=words):
        load_splits(made(**keys), 3, 0)


def test_a_node_puts_its_own_place_in_the_servers_settings(tmp_path: Path) -> None:
    """Of a source that reads one; the rest of the operator's settings stays."""
    fits = {"holder": 1, "shape": (1, 5, 6), "classes": 3}
    npz(tmp_path)
    run = DataSettings(source=Npz(path="/server/all.npz"), validation=7)
    data = NodeDataSettings.at_node(run, str(tmp_path / "own.npz"), **fits)
    assert data.validation == 7
    assert load_splits(data, 3, 0).client_sizes == [0, len(Y), 0]
    digits = NodeDataSettings.at_node(DataSettings(), str(tmp_path), **fits)
    with pytest.raises(DataError, match="a node reads idx, cifar, npz, image-folder or"):
        load_splits(digits, 3, 0)


def test_no_images_are_refused(tmp_path: Path) -> None:
    """A node without images has nothing to train on."""
    np.savez(tmp_path / "own.npz", x_train=X[:0], y_train=Y[:0])
    with pytest.raises(DataError, match=r"N > 0"):
        load_splits(made("npz", tmp_path / "own.npz"), 3, 0)
    (tmp_path / "empty").mkdir()
    for name in NAMES:
        (tmp_path / "empty" / name).mkdir()
    with pytest.raises(DataError, match="3 folders with 0 images"):
        load_splits(made("image-folder", tmp_path / "empty"), 3, 0)


def test_other_class_folders_than_the_servers_are_refused(tmp_path: Path) -> None:
    """One less or one more would shift the labels of all that follow."""
    path = pictures(tmp_path)
    (path / "bee").rmdir()
    with pytest.raises(DataError, match=r"lack \['bee'\] and have \[\] beyond.*empty folder"):
        load_splits(made("image-folder", path), 3, 0)
    (path / "wasp").mkdir()
    with pytest.raises(DataError, match=r"lack \['bee'\] and have \['wasp'\] beyond"):
        load_splits(made("image-folder", path), 3, 0)


def test_a_users_own_source_reads_the_nodes_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It gets the settings with the node's path in them."""
    (tmp_path / "ownsource.py").write_text(
        "import torch\nfrom fedcel.data import Images\n"
        "def read(data):\n"
        "    assert data.path.endswith('own.npz')\n"
        "    return Images(torch.zeros(2, 1, 5, 6), torch.tensor([0, 2])), None\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert load_splits(made("ownsource:read", npz(tmp_path)), 3, 0).clients[1].y.tolist() == [0, 2]
