"""What every attack that reconstructs images has to offer."""

from collections.abc import Callable
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from fedcel.attacks.observation import Observation

Progress = Callable[[str], None]


@runtime_checkable
class Attack(Protocol):
    """An attacker: his own images and what he observed of the targets, never the targets."""

    @property
    def name(self) -> str:
        """Return the short name of the attack."""
        ...

    @property
    def needs(self) -> frozenset[str]:
        """Return the grants without which it cannot run; see `fedcel.attacks.observation`."""
        ...

    @property
    def observes(self) -> str:
        """Return the kind of observation it attacks, such as `smashed-data`."""
        ...

    def reconstruct(
        self,
        observation: Observation,
        auxiliary: Float[Tensor, "A C H W"],
        observed: Float[Tensor, "T F"],
        budget: float,
        generator: torch.Generator,
        progress: Progress | None = None,
    ) -> Float[Tensor, "T C H W"]:
        """Return one image in [0, 1] per observed target.

        `budget` multiplies the attack's default effort; `generator` decides all its chances.
        """
        ...
