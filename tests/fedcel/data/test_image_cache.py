"""Decoded images are kept once a machine: found again, anew when files change, never in the way."""

import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path
from threading import Barrier
from typing import Any

import datasets
import numpy as np
import PIL.Image
import pytest
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load, save

from fedcel.data import (
    DataSettings,
    HuggingFace,
    Images,
    NodeDataSettings,
    Npz,
    SourceData,
    image_cache,
    load_splits,
    to_floats,
)
from fedcel.data.image_cache import cache_folder, read_cached
from fedcel.data.image_folder import ImageFolder
from fedcel.data.node_data import load_node_images
from fedcel.data.source import Source, read_source
from fedcel.errors import DataError
from fedcel.settings import parse_settings


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Source]:
    """Keep also small sets, in a folder of the test, and list what is decoded."""
    decoded: list[Source] = []

    def read(source: Source, *, is_numbered_anew: bool = False) -> SourceData:
        decoded.append(source)
        return read_source(source, is_numbered_anew=is_numbered_anew)

    monkeypatch.setenv("FEDCEL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(image_cache, "LEAST_BYTES", 1)
    monkeypatch.setattr(image_cache, "read_source", read)
    return decoded


@pytest.fixture
def npz(tmp_path: Path) -> Npz:
    """Return a source of 120 images in bytes, a fifth of them for tests."""
    stream = np.random.default_rng(0)
    x = stream.integers(0, 256, (120, 4, 4, 3), dtype=np.uint8)
    y = np.arange(120) % 3
    parts: dict[str, Any] = {
        "x_train": x[:96],
        "y_train": y[:96],
        "x_test": x[96:],
        "y_test": y[96:],
    }
    np.savez(tmp_path / "images.npz", **parts)
    return Npz(source="npz", path=str(tmp_path / "images.npz"))


def test_found_again(reads: list[Source], npz: Npz) -> None:
    """The second reading decodes nothing and gives the same, labels and classes included."""
    first, second, fresh = read_cached(npz), read_cached(npz), read_source(npz)
    assert len(reads) == 1
    for kept in (first, second):
        assert kept.train.x.dtype == torch.uint8
        assert kept.test is not None and fresh.test is not None
        assert torch.equal(kept.train.x, fresh.train.x)
        assert torch.equal(kept.test.x, fresh.test.x)
        assert torch.equal(kept.y, fresh.y)
        assert (kept.classes, kept.notes) == (fresh.classes, fresh.notes)


def test_only_what_is_taken_is_resized(reads: list[Source], npz: Npz, tmp_path: Path) -> None:
    """A part of the images is that of all images resized, from a file in their own size."""
    larger = npz.model_copy(update={"size": 8})
    parts = {"train": 20, "validation": 6, "auxiliary": 8, "test": 10}
    taken = load_splits(DataSettings(source=larger, **parts), 2, 0)
    assert [source.size for source in reads] == [0] and taken.shape == (3, 8, 8)
    (file,) = (tmp_path / "cache").glob("*.safetensors")
    assert file.stat().st_size < 120 * 48 + 2500 < 120 * 48 * 4
    assert taken.clients[0].x.dtype == torch.uint8
    whole = read_source(larger)
    sample = read_cached(larger, takes_few=True)
    assert sample.notes == whole.notes and whole.test is not None
    images = torch.cat([whole.train.x, whole.test.x])
    assert torch.equal(taken.training.x, images[torch.cat([*taken.indices.clients])])
    assert torch.equal(taken.test.x, to_floats(images[taken.indices.test]))
    everything = load_splits(DataSettings(source=larger, **parts | {"train": 0}), 2, 0)
    assert reads[-1].size == 8 and torch.equal(everything.test.x, taken.test.x)


def test_pictures_of_several_sizes_are_all_resized(reads: list[Source], tmp_path: Path) -> None:
    """Where nothing can be kept in one shape, the resized ones are."""
    sheet = datasets_of_sizes(tmp_path, (4, 6))
    data = read_cached(sheet, takes_few=True)
    assert [source.size for source in reads] == [0, 8] and data.train.x.shape[1:] == (3, 8, 8)
    assert data.size == 0


def datasets_of_sizes(folder: Path, sides: tuple[int, ...]) -> HuggingFace:
    """Write a Parquet file of pictures with these sides."""
    rows = []
    for number, side in enumerate(sides * 2):
        stored = BytesIO()
        PIL.Image.new("RGB", (side, side), (number, 2, 3)).save(stored, "PNG")
        rows.append({"image": stored.getvalue(), "label": number % 2})
    datasets.Dataset.from_list(rows).to_parquet(str(folder / "train.parquet"))
    return HuggingFace(path=str(folder / "train.parquet"), size=8)


def test_a_linked_folder_is_looked_into(reads: list[Source], tmp_path: Path) -> None:
    """Pictures that come into a class behind a link are seen; a link in a circle ends."""
    for name in ("photos/a", "elsewhere"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "photos" / "b").symlink_to(tmp_path / "elsewhere")
    source = ImageFolder(source="image-folder", path=str(tmp_path / "photos"), size=4)
    for number in range(3):
        for folder in ("photos/a", "elsewhere"):
            PIL.Image.new("RGB", (4, 4)).save(tmp_path / folder / f"{number}.png")
        assert len(read_cached(source).y) == 2 * (number + 1)
    (tmp_path / "elsewhere" / "c").symlink_to(tmp_path / "photos")
    assert len(image_cache.list_files(tmp_path / "photos")) == 6


def test_names_of_classes_are_kept(reads: list[Source], tmp_path: Path) -> None:
    """In the order of the labels."""
    for name in ("deer", "cat"):
        (tmp_path / "pictures" / name).mkdir(parents=True)
        PIL.Image.new("L", (4, 4)).save(tmp_path / "pictures" / name / "1.png")
    folder = ImageFolder(path=str(tmp_path / "pictures"))
    assert read_cached(folder).class_names == read_cached(folder).class_names == ("cat", "deer")
    assert len(reads) == 1


def test_a_class_without_an_image_is_refused_though_all_others_are_known(
    reads: list[Source], tmp_path: Path
) -> None:
    """An empty folder is no file, and yet another data set."""
    for name in "ab":
        (tmp_path / "images" / name).mkdir(parents=True)
        for number in range(20):
            pixels = np.full((4, 4), 10 * number, np.uint8)
            PIL.Image.fromarray(pixels).save(tmp_path / "images" / name / f"{number}.png")
    source = ImageFolder(source="image-folder", path=str(tmp_path / "images"))
    read_cached(source)
    (tmp_path / "images" / "c").mkdir()
    with pytest.raises(DataError, match="classes without an image"):
        read_cached(source)
    assert len(reads) == 2


def halve(source: Source) -> tuple[Images, None]:
    """Read arrays of a source, not contiguous, and darken them."""
    arrays = np.load(source.path)  # type: ignore[attr-defined]
    x = torch.from_numpy(arrays["x_train"] // 2).permute(0, 3, 1, 2)
    return Images(x, torch.from_numpy(arrays["y_train"])), None


def test_a_function_of_your_own_reads_each_time(reads: list[Source], npz: Npz) -> None:
    """Its code may change while the file does not."""
    path = f"{__name__}:halve"
    source = parse_settings({"data.source": path, "data.path": npz.path}).data.source
    for _ in range(2):
        assert read_cached(source).train.x.max() == 127
    assert len(reads) == 2 or not reads


def test_splits_are_the_same(
    reads: list[Source], npz: Npz, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everyone's images are equal to the bit with and without a cache."""
    data = DataSettings(source=npz, validation=10, auxiliary=10, test=20)
    kept = load_splits.__wrapped__(data, 3, 0)
    monkeypatch.setattr(image_cache, "LEAST_BYTES", 2**30)
    monkeypatch.setenv("FEDCEL_CACHE", str(cache_folder() / "other"))
    fresh = load_splits.__wrapped__(data, 3, 0)
    assert len(reads) == 2 and len(list(cache_folder().parent.glob("*.safetensors"))) == 1
    for name in ("training", "validation", "auxiliary", "test"):
        assert torch.equal(getattr(kept, name).x, getattr(fresh, name).x)
        assert torch.equal(getattr(kept, name).y, getattr(fresh, name).y)


def test_other_files_and_settings_are_decoded(reads: list[Source], npz: Npz) -> None:
    """A changed file and another size are not found under the old name; a copy is."""
    read_cached(npz)
    small = npz.model_copy(update={"size": 2})
    assert torch.equal(read_cached(small).train.x, read_source(small).train.x)
    with np.load(npz.path) as file:
        parts = dict(file)
    times = os.stat(npz.path)
    np.savez(npz.path, **parts | {"x_train": parts["x_train"][::-1]})
    os.utime(npz.path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert torch.equal(read_cached(npz).train.x, read_source(npz).train.x)
    assert len(reads) == 3
    copied = npz.model_copy(update={"path": f"{npz.path}.copy.npz"})
    shutil.copy(npz.path, copied.path)
    assert torch.equal(read_cached(copied).train.x, read_source(npz).train.x) and len(reads) == 3


def lose_facts(content: bytes) -> bytes:
    """Return a file of the same tensors, of which nothing is told."""
    return save(load(content), {"facts": "{}"})


@pytest.mark.parametrize(
    "damage",
    [
        lambda _: b"",
        lambda _: b"no tensors",
        lambda content: content[:-7],
        lambda content: content[:-5000] + bytes(200) + content[-4800:],
        lose_facts,
    ],
    ids=["empty", "overwritten", "cut short", "zeros", "no facts"],
)
def test_damage_is_mended(damage: Callable[[bytes], bytes], reads: list[Source], npz: Npz) -> None:
    """A file that was cut short, or overwritten in part, is written anew."""
    read_cached(npz)
    (file,) = cache_folder().glob("*.safetensors")
    file.write_bytes(damage(file.read_bytes()))
    assert torch.equal(read_cached(npz).train.x, read_source(npz).train.x)
    read_cached(npz)
    assert len(reads) == 2


def test_a_set_is_decoded_by_one(reads: list[Source], npz: Npz) -> None:
    """Readers that come at the same time wait for the first."""
    with ThreadPoolExecutor(4) as pool:
        sets = list(pool.map(read_cached, [npz] * 4))
    assert len(reads) == 1
    assert all(torch.equal(part.train.x, sets[0].train.x) for part in sets)


def test_a_folder_that_cannot_be_written(
    reads: list[Source], npz: Npz, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The images are read all the same, and a note names the folder."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("FEDCEL_CACHE", str(tmp_path / "file"))
    data = read_cached(npz)
    assert f"cannot be kept in {tmp_path / 'file'}" in data.notes[-1]


def test_a_full_disk(reads: list[Source], npz: Npz, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is left of a file that could not be finished, and a note gives the reason."""

    def fill(tensors: object, path: str, metadata: object) -> None:
        Path(path).write_bytes(b"half")
        raise SafetensorError("No space left on device")

    monkeypatch.setattr(image_cache, "save_file", fill)
    assert "No space left on device" in read_cached(npz).notes[-1]
    assert len(reads) == 1
    assert not list(cache_folder().iterdir())


def test_small_sets_are_not_kept(
    reads: list[Source], npz: Npz, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are decoded at the same time, without a lock, and leave no file."""
    monkeypatch.setattr(image_cache, "LEAST_BYTES", 2**24)
    together = Barrier(2, timeout=30)

    def read(source: Source, *, is_numbered_anew: bool) -> SourceData:
        together.wait()
        return read_source(source, is_numbered_anew=is_numbered_anew)

    monkeypatch.setattr(image_cache, "read_source", read)
    with ThreadPoolExecutor(2) as pool:
        for data in pool.map(read_cached, [npz] * 2):
            assert torch.equal(data.train.x, read_source(npz).train.x)
    assert not cache_folder().exists()


def test_only_sets_stay(reads: list[Source], npz: Npz) -> None:
    """No lock and no half file; others of the machine may not read a data holder's images."""
    read_cached(npz)
    (file,) = cache_folder().iterdir()
    assert file.suffix == ".safetensors" and file.stat().st_mode & 0o77 == 0


def test_the_least_recently_used_set_goes(
    reads: list[Source], npz: Npz, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Room for two of three sets; a mapped one stays whole, other files are not touched."""
    sources = [npz.model_copy(update={"size": size}) for size in (0, 5, 6)]
    first, second = (read_cached(source) for source in sources[:2])
    files = sorted(cache_folder().iterdir(), key=lambda file: file.stat().st_mtime_ns)
    for age, file in zip((100, 50), files, strict=True):
        os.utime(file, (file.stat().st_mtime - age,) * 2)
    foreign = [cache_folder() / name for name in ("mine.safetensors", "a" * 32)]
    for file in foreign:
        file.write_bytes(bytes(10_000))
    read_cached(sources[0])  # is now the one used last
    size = sum(file.stat().st_size for file in files)
    monkeypatch.setenv("FEDCEL_CACHE_GB", str((size + 8_000) / 1e9))
    read_cached(sources[2])
    assert files[0].exists() and not files[1].exists() and all(file.exists() for file in foreign)
    assert torch.equal(second.train.x, read_source(sources[1]).train.x)
    assert len(list(cache_folder().iterdir())) == 4 and len(reads) == 3
    assert torch.equal(first.train.x, read_cached(sources[0]).train.x) and len(reads) == 3


def test_sets_without_room_are_not_kept(
    reads: list[Source], npz: Npz, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One larger than the limit, with a note; at 0 none; and a limit is a number."""
    monkeypatch.setenv("FEDCEL_CACHE_GB", "1e-6")
    assert "GB, FEDCEL_CACHE_GB allows 1e-06" in read_cached(npz).notes[-1]
    monkeypatch.setenv("FEDCEL_CACHE_GB", "0")
    assert read_cached(npz).notes == read_source(npz).notes
    assert not list(cache_folder().iterdir())
    for text in ("much", "-1", "nan"):
        monkeypatch.setenv("FEDCEL_CACHE_GB", text)
        with pytest.raises(DataError, match=f"FEDCEL_CACHE_GB is '{text}', must be a number"):
            read_cached(npz)


def test_a_nodes_images_are_kept(
    reads: list[Source], npz: Npz, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its training images alone, the same whether they were kept or not."""
    run = DataSettings(source=npz)
    node = NodeDataSettings.at_node(run, npz.path, holder=1, shape=(3, 4, 4), classes=3)
    fresh, kept = (load_node_images(node) for _ in range(2))
    assert torch.equal(fresh[0].x, kept[0].x) and fresh[1] == kept[1]
    assert torch.equal(kept[0].x, read_source(npz).train.x)
    (file,) = cache_folder().iterdir()
    with safe_open(file, framework="pt") as opened:
        assert set(opened.keys()) == {"train.x", "train.y"}
    monkeypatch.setattr(Npz, "read_training", None)  # is not asked again
    assert torch.equal(load_node_images(node)[0].y, kept[0].y)
