"""A user's own defence with a loss, named by whatever goes wrong in it."""

from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from fedcel.losses.contract import require_state, require_term
from fedcel.losses.defences.protocol import Defence
from fedcel.losses.protocol import State, Term
from fedcel.plugins import PartName, blame_part


@final
class OwnDefence:
    """A user's defence as training calls it: FailedError names it as `OwnCEL` does a loss.

    Args:
        part: How errors name the defence.
        defence: The defence.
    """

    def __init__(self, part: PartName, defence: Defence) -> None:
        self._part, self._defence = part, defence

    def refresh(self, state: State | None, generator: torch.Generator) -> State:
        """Return the defence's state; see `Defence.refresh`."""
        with blame_part(self._part):
            return require_state(self._defence.refresh(state, generator), "refresh")

    def loss(
        self,
        state: State,
        x: Float[Tensor, "B C H W"],
        z: Float[Tensor, "B D"],
        smashed: Float[Tensor, "B D"],
        measure: bool = True,
    ) -> Term:
        """Return the defence's term; see `Defence.loss`."""
        with blame_part(self._part):
            return require_term(self._defence.loss(state, x, z, smashed, measure))

    def step(self, state: State) -> State:
        """Return the defence's next state; see `Defence.step`."""
        with blame_part(self._part):
            return require_state(self._defence.step(state), "step")
