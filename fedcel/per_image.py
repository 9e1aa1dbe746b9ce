"""Measurements of each test image, which intervals over images need.

Every run has `per-image.safetensors`: vectors with one value for each test image, in their order.
The results of attacks have such vectors of their targets.
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


def vector_name(row: Mapping[str, object], measure: str) -> str:
    """Return the name of what an attack's row has of each target."""
    return APART.join([str(row["attack"]), str(row["seed"]), measure])


def read_vectors(folder: Path) -> Vectors:
    """Return what is there, nothing where nothing was kept; RunError when it is damaged."""
    path = folder / FILE
    return read_tensors(path)[0] if path.exists() else {}


def write_vectors(folder: Path, vectors: Vectors) -> None:
    """Write the vectors whole, as 32-bit floats: their means are kept in full elsewhere."""
    write_tensors(folder / FILE, {key: value.float() for key, value in vectors.items()})
