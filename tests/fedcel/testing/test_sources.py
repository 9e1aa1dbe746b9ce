"""Every built-in source of images holds the contract of sources."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fedcel.data import (
    Cifar,
    Digits,
    HuggingFace,
    Idx,
    ImageFolder,
    Images,
    ImportedSource,
    Npz,
    Source,
)
from fedcel.errors import ContractError
from fedcel.settings import DataSettings
from fedcel.testing import check_source
from tests.fedcel.data.test_idx import idx

COUNT = 300
WRITERS = 5


def written() -> tuple[np.ndarray, np.ndarray]:
    """Return the first digits as bytes (300, 8, 8) and their labels."""
    x, y = Digits().read().train
    return (x[:COUNT, 0] * 255).round().numpy().astype(np.uint8), y[:COUNT].numpy()


def write_idx(folder: Path, x: np.ndarray, y: np.ndarray) -> DataSettings:
    """Write four files: 220 training and 80 test images."""
    for name, part in (("train", slice(220)), ("t10k", slice(220, None))):
        (folder / f"{name}-images-idx3-ubyte").write_bytes(idx(x[part]))
        (folder / f"{name}-labels-idx1-ubyte").write_bytes(idx(y[part].astype(np.uint8)))
    return DataSettings(source=Idx(path=str(folder)))


def write_npz(folder: Path, x: np.ndarray, y: np.ndarray) -> DataSettings:
    """Write one archive, no test part."""
    np.savez(folder / "digits.npz", x_train=x[..., None], y_train=y)
    return DataSettings(source=Npz(path=str(folder / "digits.npz")))


def write_image_folder(folder: Path, x: np.ndarray, y: np.ndarray) -> DataSettings:
    for k, (pixels, label) in enumerate(zip(x, y, strict=True)):
        place = folder / str(label) / f"writer{k % WRITERS}"
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(place / f"{k}.png")
    return DataSettings(source=ImageFolder(path=str(folder)))


def write_data_set(folder: Path, x: np.ndarray, y: np.ndarray) -> DataSettings:
    """Write a data set as `save_to_disk` leaves it, with a column of holders."""
    import datasets  # two seconds that other processes of the tests spare

    features = datasets.Features(
        {
            "image": datasets.Image(),
            "label": datasets.ClassLabel(10),
            "writer": datasets.Value("int64"),
        }
    )
    table = {
        "image": [Image.fromarray(pixels) for pixels in x],
        "label": y.tolist(),
        "writer": [k % WRITERS for k in range(COUNT)],
    }
    saved_set = datasets.Dataset.from_dict(table, features=features)
    saved_set.save_to_disk(str(folder / "set"))
    return DataSettings(source=HuggingFace(path=str(folder / "set"), holder_column="writer"))


def write_cifar(folder: Path, x: np.ndarray, y: np.ndarray) -> DataSettings:
    """Write digits in colour, 50 images in each of the six files of the binary version."""
    grown = np.repeat(np.repeat(x, 4, 1), 4, 2)
    names = [*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"]
    for number, name in enumerate(names):
        part = slice(50 * number, 50 * (number + 1))
        rows = zip(grown[part], y[part], strict=True)
        content = b"".join(bytes([label]) + 3 * image.tobytes() for image, label in rows)
        (folder / name).write_bytes(content)
    return DataSettings(source=Cifar(path=str(folder)))


WRITERS_OF_SOURCES = {
    "idx": write_idx,
    "npz": write_npz,
    "image-folder": write_image_folder,
    "huggingface": write_data_set,
    "cifar": write_cifar,
}


def test_every_source_is_here() -> None:
    """None is left out."""
    assert {"digits", *WRITERS_OF_SOURCES} == {*Source.list_names()}


def test_the_embedded_source_holds_the_contract() -> None:
    """The digits, with the defaults."""
    check_source(DataSettings())


@pytest.mark.parametrize("name", WRITERS_OF_SOURCES)
def test_a_source_on_the_disk_holds_the_contract(name: str, tmp_path: Path) -> None:
    """Written as others write it."""
    settings = WRITERS_OF_SOURCES[name](tmp_path, *written())
    assert settings.source.kind_name == name
    check_source(settings)


def give_digits(source: ImportedSource) -> tuple[Images, None, torch.Tensor | None]:
    x, y = Digits().read().train
    holders = None
    match source.source.rpartition(":")[2]:
        case "shuffled":
            y = y[torch.randperm(len(y), generator=torch.Generator().manual_seed(0))]
        case "repeated":
            x, y = x[:200].repeat(5, 1, 1, 1), y[:200].repeat(5)
        case "one_holder":
            holders = torch.zeros(len(y), dtype=torch.long)
        case "drawn":
            x = x[torch.randperm(len(x))]
    return Images(x, y), None, holders


sound = shuffled = repeated = one_holder = drawn = give_digits


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("shuffled", "labels must belong to the images"),
        ("repeated", "must differ from all others; 200 do"),
        ("one_holder", "holders must be two or more"),
        ("drawn", "not from torch's global stream"),
    ],
)
def test_a_line_of_the_contract_is_broken(name: str, line: str) -> None:
    """By a source with one fault."""
    with pytest.raises(ContractError, match=line):
        check_source(DataSettings(source=ImportedSource(source=f"{__name__}:{name}")))


def test_what_has_no_fault_is_let_through() -> None:
    """So that each fault is the reason; labels that nothing tells apart may be allowed."""
    check_source(DataSettings(source=ImportedSource(source=f"{__name__}:sound")))
    guessed = ImportedSource(source=f"{__name__}:shuffled")
    check_source(DataSettings(source=guessed), learnable=False)
