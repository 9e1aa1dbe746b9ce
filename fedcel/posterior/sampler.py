"""Protocol of samplers, as the local update calls them."""

from collections.abc import Callable
from typing import Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor

from fedcel.posterior.schedule import RoundPlan
from fedcel.tensors import State

NoiseAdder = Callable[[Tensor, float], None]
"""add_noise(target, scale) adds `scale` times a fresh draw of a Langevin step's noise, in place.

It has the deviation that fits this client's weight.
"""


@runtime_checkable
class Sampler(Protocol):
    """One step of the parameters that move; its state lasts for one round of one client.

    What is sampled is not its business: the gradient is that of the loss, clipped as the settings
    say, plus those of the priors.
    """

    def start(self, w: Float[Tensor, " M"], plan: RoundPlan) -> State:
        """Make the state before a round's first step.

        Args:
            w: The parameters that move, (M,), where the round starts.
            plan: The round's constants.

        Returns:
            Tensors by name.
        """
        ...

    def step(
        self,
        state: State,
        w: Float[Tensor, " M"],
        gradient: Float[Tensor, " M"],
        add_noise: NoiseAdder,
        plan: RoundPlan,
    ) -> State:
        """Move `w` in place. The arguments are given by position.

        Args:
            state: What `start` or the last step returned.
            w: The parameters that move, (M,).
            gradient: The gradient of the potential per example, (M,); it may be overwritten.
            add_noise: Adds noise to a tensor; nothing at temperature 0.
            plan: `rate` is eta, `steps` the steps of a round.

        Returns:
            The next state.
        """
        ...
