"""Posterior samples on disk: a ring of thinned global models."""

from pathlib import Path

from jaxtyping import Float
from torch import Tensor

from fedcel.errors import RunError
from fedcel.files import read_tensors, write_tensors

MIN_ESS = 100.0
"""Effective samples below which a chain is not said to have converged."""
MIN_SAMPLED_ROUNDS = 20
"""Sampled rounds below which nothing is said of a chain."""


class Chain:
    """The posterior samples of a run: one file each, named by its round, the oldest dropped first.

    Args:
        folder: The folder of the samples; it need not exist.
        capacity: How many are kept at most.
    """

    def __init__(self, folder: str | Path, capacity: int) -> None:
        self.folder = Path(folder)
        self.capacity = capacity

    def list_rounds(self) -> list[int]:
        """List the rounds of the kept samples.

        Returns:
            Ascending.
        """
        return sorted(int(path.stem) for path in self.folder.glob("[0-9]*.safetensors"))

    def write_sample(self, number: int, model: Float[Tensor, " P"]) -> None:
        """Write a sample, then drop the oldest beyond the capacity.

        Args:
            number: Its round.
            model: Its parameters, (P,).
        """
        write_tensors(self._path(number), {"model": model}, {"round": str(number)})
        for oldest in self.list_rounds()[: -self.capacity]:
            self._path(oldest).unlink()

    def delete_after(self, number: int) -> None:
        """Delete later samples; a resumed run writes them again.

        Args:
            number: The last round whose sample stays.
        """
        for later in self.list_rounds():
            if later > number:
                self._path(later).unlink()

    def read_samples(self) -> list[Float[Tensor, " P"]]:
        """Read the kept samples.

        Returns:
            Parameters, (P,) each, oldest first.

        Raises:
            RunError: A file is damaged.
        """
        samples = [read_tensors(self._path(number))[0] for number in self.list_rounds()]
        if not all("model" in sample for sample in samples):
            raise RunError(f"{self.folder} holds a file without a model; it is damaged")
        return [sample["model"] for sample in samples]

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:06d}.safetensors"
