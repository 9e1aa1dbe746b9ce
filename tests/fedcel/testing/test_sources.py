"""Every built-in source of images holds the contract of sources."""

from pathlib import Path

import datasets
import numpy as np
import pytest
from PIL import Image

from fedcel.data import Digits, HuggingFace, Npz, Source
from fedcel.settings import DataSettings
from fedcel.testing.sources import SourceContract
from tests.fedcel.data.test_idx import idx

COUNT = 300
WRITERS = 5


def written() -> tuple[np.ndarray, np.ndarray]:
    """Return the first digits as bytes (300, 8, 8) and their labels."""
    x, y = Digits().read().train
    return (x[:COUNT, 0] * 255).round().numpy().astype(np.uint8), y[:COUNT].numpy()


class TestDigits(SourceContract):
    """Embedded."""

    def settings(self) -> DataSettings:
        """Return the defaults."""
        return DataSettings()


class OnDisk(SourceContract):
    """A folder of the test's own, written by `write`."""

    @pytest.fixture(autouse=True)
    def place(self, tmp_path: Path) -> None:
        """Write the images."""
        self.folder = tmp_path
        self.write(*written())

    def write(self, x: np.ndarray, y: np.ndarray) -> None:
        """Write images and labels into the folder."""
        raise NotImplementedError

    def settings(self) -> DataSettings:
        """Return the settings that name the folder."""
        return DataSettings.model_validate({"source": self.source, "path": str(self.folder)})

    source: str


class TestIdx(OnDisk):
    """Four files."""

    source = "idx"

    def write(self, x: np.ndarray, y: np.ndarray) -> None:
        """Write 220 training and 80 test images."""
        for name, part in (("train", slice(220)), ("t10k", slice(220, None))):
            (self.folder / f"{name}-images-idx3-ubyte").write_bytes(idx(x[part]))
            (self.folder / f"{name}-labels-idx1-ubyte").write_bytes(idx(y[part].astype(np.uint8)))


class TestNpz(OnDisk):
    """One archive, no test part."""

    source = "npz"

    def write(self, x: np.ndarray, y: np.ndarray) -> None:
        """Write the arrays."""
        np.savez(self.folder / "digits.npz", x_train=x[..., None], y_train=y)

    def settings(self) -> DataSettings:
        """Return the settings that name the file."""
        return DataSettings(source=Npz(path=str(self.folder / "digits.npz")))


class TestFolder(OnDisk):
    """A folder for each class, in it one for each holder."""

    source = "image-folder"

    def write(self, x: np.ndarray, y: np.ndarray) -> None:
        """Write a picture for each image."""
        for k, (pixels, label) in enumerate(zip(x, y, strict=True)):
            place = self.folder / str(label) / f"writer{k % WRITERS}"
            place.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(place / f"{k}.png")


class TestHub(OnDisk):
    """A data set as `save_to_disk` leaves it, with a column of holders."""

    source = "huggingface"

    def write(self, x: np.ndarray, y: np.ndarray) -> None:
        """Write the data set."""
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
        saved_set.save_to_disk(str(self.folder / "set"))

    def settings(self) -> DataSettings:
        """Return the settings that name the folder and the holders."""
        return DataSettings(
            source=HuggingFace(path=str(self.folder / "set"), holder_column="writer")
        )


class TestCifar(OnDisk):
    """Digits in colour, in the six files of the binary version."""

    source = "cifar"

    def write(self, x: np.ndarray, y: np.ndarray) -> None:
        """Write 50 images a batch."""
        grown = np.repeat(np.repeat(x, 4, 1), 4, 2)
        names = [*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"]
        for number, name in enumerate(names):
            part = slice(50 * number, 50 * (number + 1))
            rows = zip(grown[part], y[part], strict=True)
            content = b"".join(bytes([label]) + 3 * image.tobytes() for image, label in rows)
            (self.folder / name).write_bytes(content)


def test_every_source_is_here() -> None:
    """None is left out."""
    tested = {"digits"} | {kind.source for kind in OnDisk.__subclasses__()}
    assert tested == {*Source.list_names()}
