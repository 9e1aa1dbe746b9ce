"""What every attack that reconstructs images has to offer."""

from collections.abc import Callable
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from fedcel.data import Images
from fedcel.leakage import Observation

Progress = Callable[[str], None]
"""Takes a line such as `step 200/2000, loss 0.03`."""


class OtherClasses(Images):
    """Images of classes that are not the net's: a label says which are alike, not what they are."""

    __slots__ = ()


@runtime_checkable
class Attack(Protocol):
    """An attacker who reconstructs images: implement it to add an attack of your own.

    The attacker has own images and what was observed of the targets, never the targets.
    """

    @property
    def name(self) -> str:
        """The short name of the attack, as rows of results give it."""
        ...

    @property
    def needs(self) -> frozenset[str]:
        """The grants without which it cannot run, such as `fedcel.leakage.MEAN`."""
        ...

    @property
    def observes(self) -> str:
        """The kind of observation it attacks, such as `smashed-data`."""
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
        """Reconstruct one image per observed target.

        Called with positional arguments, so that an attack may name them as it likes.

        Args:
            observation: What is attacked, and what it grants.
            auxiliary: The attacker's own images; their labels are classes of the net unless they
                are `OtherClasses`.
            observed: What was seen of each target, (T, F).
            budget: Multiplies the attack's default effort, above 0.
            generator: Decides all its chances.
            progress: Told lines with the part done, the last one at the end; None: nobody listens.

        Returns:
            Images (T, C, H, W) in [0, 1], without a gradient.

        Raises:
            ValueError: The observation does not grant what the attack needs.
            DataError: There are too few own images.
        """
        ...
