"""What was measured of each test image, beside the means: intervals over images need it.

Every run has `per-image.safetensors`: vectors with one value for each test image, in their order.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor

from fedcel.files import read_tensors, write_tensors

FILE = "per-image.safetensors"
APART = "|"
"""Between the parts of a vector's name."""
Vectors = dict[str, Float[Tensor, " T"]]


class Parts(NamedTuple):
    """What the name of a vector says that is of an attack."""

    attack: str
    observation: str
    knowledge: str
    budget: str
    targets: str
    seed: str
    measure: str


def vector_name(row: Mapping[str, object], measure: str) -> str:
    """Return the name of what a row of attacks.json has of each target."""
    return APART.join([*(format_plain(row.get(key, "")) for key in Parts._fields[:-1]), measure])


def format_plain(value: object) -> str:
    """Return a part of a name: 1 and 1.0 are one."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def parse_vector_name(key: str) -> Parts | None:
    """Return what a name says; None where it is of no attack."""
    return Parts(*key.split(APART)) if APART in key else None


def read_vectors(folder: Path) -> Vectors:
    """Return what is there, nothing in folders of older versions; RunError when it is damaged."""
    path = folder / FILE
    return read_tensors(path)[0] if path.exists() else {}


def vectors_of_run(folder: Path) -> Vectors:
    """Return what a run has of each image without any trained attack."""
    return {key: value for key, value in read_vectors(folder).items() if APART not in key}


def write_vectors(folder: Path, vectors: Vectors) -> None:
    """Write the vectors whole, as 32-bit floats: their means are kept in full elsewhere."""
    write_tensors(folder / FILE, {key: value.float() for key, value in vectors.items()})
