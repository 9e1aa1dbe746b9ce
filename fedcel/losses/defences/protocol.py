"""What a defence offers: a loss to the local update, a change of what is sent to the net."""

from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from fedcel.losses.protocol import State, Term


@runtime_checkable
class Defence(Protocol):
    """A loss that makes images hard to recover from what is sent.

    All arguments are passed by position, so that a defence of your own may name them as it likes.
    """

    def refresh(self, state: State | None, generator: torch.Generator) -> State:
        """Make the state that a round starts with.

        Args:
            state: The state of the last round; None at a client's first.
            generator: The only source of random numbers.

        Returns:
            The state for the next batches.
        """
        ...

    def loss(
        self,
        state: State,
        x: Float[Tensor, "B C H W"],
        z: Float[Tensor, "B D"],
        smashed: Float[Tensor, "B D"],
        measure: bool = True,
    ) -> Term:
        """Compute the loss of one batch.

        Args:
            state: The current state, which is not changed.
            x: Images (B, C, H, W) in [0, 1].
            z: Their features (B, D), with a gradient.
            smashed: z after the noise of the cut (B, D), with a gradient.
            measure: Whether to compute metrics.

        Returns:
            The loss, and its metrics or an empty dictionary.
        """
        ...

    def step(self, state: State) -> State:
        """Move what the defence learns itself, such as an adversary, after the backward pass.

        Args:
            state: The state whose tensors gathered their gradient.

        Returns:
            The state for the next batch.
        """
        ...


@runtime_checkable
class Transform(Protocol):
    """A change of features before the noise of the cut, such as fewer levels or fewer values."""

    def transform(self, z: Float[Tensor, "B D"]) -> Float[Tensor, "B D"]:
        """Change features: each row by itself, nothing drawn at random, with a gradient.

        Args:
            z: Features (B, D).

        Returns:
            What is sent in place of z (B, D), noise excluded. Where z is bounded by |z|^2 <= D, so
            must it be.
        """
        ...
