"""What a defence offers: a loss to the local update, a change of what is sent to the net."""

from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from fedcel.losses.cel.protocol import State, Term


@runtime_checkable
class Defence(Protocol):
    """A loss of images x (B, C, H, W) and what is made of them, that hides the images."""

    def refresh(self, state: State | None, generator: torch.Generator) -> State:
        """Return the state a round starts with; drawn from `generator` where there is none."""
        ...

    def loss(
        self,
        state: State,
        x: Float[Tensor, "B C H W"],
        z: Float[Tensor, "B D"],
        message: Float[Tensor, "B D"],
        measure: bool = True,
    ) -> Term:
        """Return the differentiable loss of one batch; `message` is z after the cut's noise.

        `state` is not changed; without `measure` there are no metrics.
        """
        ...

    def step(self, state: State) -> State:
        """Return the state after the backward pass (an adversary moves here)."""
        ...


@runtime_checkable
class Transform(Protocol):
    """A change of smashed data before the cut's noise, such as fewer levels or fewer values."""

    def transform(self, z: Float[Tensor, "B D"]) -> Float[Tensor, "B D"]:
        """Return what is sent in place of z: each row by itself, nothing drawn, with a gradient.

        Where z is bounded by |z|^2 <= D, so must it be.
        """
        ...
