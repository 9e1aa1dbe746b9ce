"""One attacker at work, and the base of the built-in attacks."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from fedcel.attacks.protocol import Progress
from fedcel.data import Images
from fedcel.leakage import Observation

PROGRESS_LINES = 10  # of a training, about
Reconstructions = Float[Tensor, "T C H W"]
"""One image in [0, 1] per target."""
Rebuild = Callable[[Float[Tensor, "T F"]], Float[Tensor, "T C H W"]]
"""What an attack has learned: messages to images in [0, 1]."""


@dataclass(frozen=True)
class Attacker:
    """What an attack works with: observation, auxiliary images, budget, random generator."""

    observation: Observation
    auxiliary: Images
    budget: float
    generator: torch.Generator
    progress: Progress | None = None

    def scale(self, effort: int) -> int:
        """Return `budget` times a number of steps, at least one."""
        return max(1, round(effort * self.budget))

    def report(self, unit: str, done: int, total: int, detail: str) -> None:
        """Tell `unit done/total, detail` about ten times in all, the last time at the end."""
        if self.progress and (done % max(1, total // PROGRESS_LINES) == 0 or done == total):
            self.progress(f"{unit} {done}/{total}, {detail}")


class BaseAttack(ABC):
    """A built-in attack: `reconstruct` is that of `Attack`, what differs is in `invert`."""

    def reconstruct(
        self,
        observation: Observation,
        auxiliary: Images,
        observed: Float[Tensor, "T F"],
        budget: float,
        generator: torch.Generator,
        progress: Progress | None = None,
    ) -> Reconstructions:
        """Reconstruct one image per observed target; see `Attack.reconstruct`."""
        return self.invert(Attacker(observation, auxiliary, budget, generator, progress), observed)

    @abstractmethod
    def invert(self, attacker: Attacker, observed: Float[Tensor, "T F"]) -> Reconstructions:
        """Return one image in [0, 1] per observed target."""
