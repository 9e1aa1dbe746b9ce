"""What every attack that reconstructs images has to offer."""

from collections.abc import Callable
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from fedcel.data import Images
from fedcel.leakage import Observation

Progress = Callable[[str], None]
REPORTS = 10  # progress lines of a training
TellAttack = Callable[[float, int, str], None]
"""Takes how many attacks are done, of how many, and the name of the one that begins."""


class OtherClasses(Images):
    """Images of classes that are not the net's: a label says which are alike, not what they are."""

    __slots__ = ()


@runtime_checkable
class Attack(Protocol):
    """An attacker: his own images and what he observed of the targets, never the targets."""

    @property
    def name(self) -> str:
        """Return the short name of the attack."""
        ...

    @property
    def needs(self) -> frozenset[str]:
        """Return the grants without which it cannot run; see `fedcel.leakage.observation`."""
        ...

    @property
    def observes(self) -> str:
        """Return the kind of observation it attacks, such as `smashed-data`."""
        ...

    def reconstruct(
        self,
        observation: Observation,
        auxiliary: Images,
        observed: Float[Tensor, "T F"],
        budget: float,
        generator: torch.Generator,
        progress: Progress | None = None,
    ) -> Float[Tensor, "T C H W"]:
        """Return one image in [0, 1] per observed target.

        `auxiliary` are the attacker's own images; their labels are classes of the net unless they
        are `OtherClasses`. `budget` multiplies the attack's default effort; `generator` decides all
        its chances. `progress` is told lines with the part done, such as `step 200/2000`, the last
        one at the end.
        """
        ...


def report_progress(progress: Progress | None, what: str, done: int, total: int, rest: str) -> None:
    """Tell `what done/total, rest` about ten times in all, the last time at the end."""
    if progress and (done % max(1, total // REPORTS) == 0 or done == total):
        progress(f"{what} {done}/{total}, {rest}")
