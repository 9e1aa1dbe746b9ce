"""The global random generators, seeded for one draw: strategies of Flower's draw from these."""

import random
from types import TracebackType
from typing import NamedTuple

import numpy as np
import torch

from fedcel.seeding import stream_seed


class GeneratorStates(NamedTuple):
    """Where the global generators of Python, NumPy and PyTorch stand."""

    python: object
    numpy: tuple[bytes, int]
    torch: bytes


def read_generator_states() -> GeneratorStates:
    """Read where the global generators stand, to see later whether somebody drew.

    Returns:
        States that can be compared.
    """
    numpy_state = np.random.get_state(legacy=False)["state"]  # noqa: NPY002  (others draw of it)
    key, position = np.asarray(numpy_state["key"]), int(numpy_state["pos"])
    return GeneratorStates(
        random.getstate(), (key.tobytes(), position), torch.get_rng_state().numpy().tobytes()
    )


class SeededDraw:
    """Seeds the global generators for the time of a `with`; afterwards they go on as before.

    Args:
        seed: The run's seed.
        purpose: What is drawn.
        round_number: For which round.
    """

    def __init__(self, seed: int, purpose: str, round_number: int) -> None:
        self._stream = seed, purpose, round_number
        self._times = 0
        self._was_drawn = False

    def __enter__(self) -> "SeededDraw":
        """Seed the generators."""
        numpy_state = np.random.get_state()  # noqa: NPY002
        self._before = random.getstate(), numpy_state, torch.get_rng_state()
        self._seed()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Let the generators go on where they stood."""
        random.setstate(self._before[0])
        np.random.set_state(self._before[1])  # noqa: NPY002
        torch.set_rng_state(self._before[2])

    @property
    def has_drawn(self) -> bool:
        """Say whether anything was drawn since the beginning."""
        return self._was_drawn or read_generator_states() != self._seeded

    def reseed(self) -> None:
        """Seed the generators anew, to the next stream.

        Just before a draw: other threads, as one that waits for a connection, draw from them too.
        """
        self._was_drawn = self.has_drawn
        self._seed()

    def _seed(self) -> None:
        value = stream_seed(*self._stream, self._times)
        self._times += 1
        random.seed(value)
        np.random.seed(value % 2**32)  # noqa: NPY002
        torch.default_generator.manual_seed(value)
        self._seeded = read_generator_states()
