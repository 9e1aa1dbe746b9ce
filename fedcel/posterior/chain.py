"""Posterior samples on disk: a ring of thinned global models."""

from pathlib import Path

from jaxtyping import Float
from torch import Tensor

from fedcel.errors import RunError
from fedcel.files import read_tensors, write_tensors


class Chain:
    """At most `capacity` samples in `folder`, one file each, named by their round."""

    def __init__(self, folder: Path, capacity: int) -> None:
        self.folder = folder
        self.capacity = capacity

    def rounds(self) -> list[int]:
        """Return the rounds of the kept samples, ascending."""
        return sorted(int(path.stem) for path in self.folder.glob("[0-9]*.safetensors"))

    def keep(self, number: int, model: Float[Tensor, " P"]) -> None:
        """Write the sample of round `number`, then drop the oldest beyond the capacity."""
        write_tensors(self._path(number), {"model": model}, {"round": str(number)})
        for old in self.rounds()[: -self.capacity]:
            self._path(old).unlink()

    def forget_after(self, number: int) -> None:
        """Drop samples later than round `number`; a resumed run writes them again."""
        for later in (kept for kept in self.rounds() if kept > number):
            self._path(later).unlink()

    def read(self) -> list[Float[Tensor, " P"]]:
        """Return the kept samples, oldest first."""
        found = [read_tensors(self._path(number))[0].get("model") for number in self.rounds()]
        if any(sample is None for sample in found):
            raise RunError(f"{self.folder} holds a file without a model; it is damaged")
        return [sample for sample in found if sample is not None]

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:06d}.safetensors"
