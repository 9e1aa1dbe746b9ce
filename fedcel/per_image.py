"""What was measured of each test image, beside the means: intervals over images need it.

Every run has `per-image.safetensors`: vectors with one value for each test image, in their order.
"""

from collections.abc import Mapping
from pathlib import Path

from jaxtyping import Float
from torch import Tensor

from fedcel.files import read_tensors, write_tensors

FILE = "per-image.safetensors"
APART = "|"
"""Between the parts of a vector's name."""
Vectors = dict[str, Float[Tensor, " T"]]


def name(row: Mapping[str, object], measure: str) -> str:
    """Return the name of what a row of attacks.json has of each target."""
    keys = ("attack", "observation", "knowledge", "budget", "targets", "seed")
    return APART.join([*(_text(row.get(key, "")) for key in keys), measure])


def read(folder: Path) -> Vectors:
    """Return what is there, nothing in folders of older versions; RunError when it is damaged."""
    path = folder / FILE
    return read_tensors(path)[0] if path.exists() else {}


def of_run(folder: Path) -> Vectors:
    """Return what a run has of each image without any trained attack."""
    return {key: value for key, value in read(folder).items() if APART not in key}


def write(folder: Path, vectors: Vectors) -> None:
    """Write the vectors whole, as 32-bit floats: their means are kept in full elsewhere."""
    write_tensors(folder / FILE, {key: value.float() for key, value in vectors.items()})


def _text(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
