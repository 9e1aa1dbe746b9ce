"""What a client's step does with a gradient and a draw of noise: Langevin, or a user's own."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, final, runtime_checkable

from jaxtyping import Float
from torch import Tensor

from fedcel import plugins
from fedcel.errors import PluginError
from fedcel.losses.cel import State
from fedcel.posterior.round_plan import RoundPlan
from fedcel.settings import SAMPLERS, LocalSettings

Kick = Callable[[Tensor, float], None]
"""kick(into, scale) adds `scale` times a fresh draw of a Langevin step's noise to `into`, in place.

It has the deviation that fits this client's weight, shared noise and preconditioner included.
"""


@runtime_checkable
class Sampler(Protocol):
    """How the parameters that move take one step; its state lasts for one round of one client.

    What is sampled is not its business: the gradient is that of the loss, the priors and the
    control variate, clipped and preconditioned as the settings say.
    """

    def start(self, w: Float[Tensor, " M"], plan: RoundPlan) -> State:
        """Return the state before a round's first step; `w` is where the round starts."""
        ...

    def step(
        self,
        state: State,
        w: Float[Tensor, " M"],
        gradient: Float[Tensor, " M"],
        kick: Kick,
        plan: RoundPlan,
    ) -> State:
        """Move `w` in place and return the next state; `gradient` may be overwritten.

        `plan.rate` is eta, `plan.steps` the steps of a round. At temperature 0 `kick` adds nothing.
        """
        ...


@final
class Langevin:
    """w <- w - eta gradient + noise: Welling and Teh, ICML 2011, equation 4."""

    def start(self, w: Float[Tensor, " M"], plan: RoundPlan) -> State:
        """Return an empty state."""
        return {}

    def step(
        self,
        state: State,
        w: Float[Tensor, " M"],
        gradient: Float[Tensor, " M"],
        kick: Kick,
        plan: RoundPlan,
    ) -> State:
        """Move `w`; the state stays empty."""
        w.add_(gradient, alpha=-plan.rate)
        kick(w, 1.0)
        return state


@dataclass
class SamplerState:
    """A sampler on its way through a round."""

    sampler: Sampler
    state: State

    def step(
        self, w: Float[Tensor, " M"], gradient: Float[Tensor, " M"], kick: Kick, plan: RoundPlan
    ) -> None:
        """Move `w`, and keep the sampler's next state."""
        self.state = self.sampler.step(self.state, w, gradient, kick, plan)


PLAIN = SamplerState(Langevin(), {})
"""Langevin steps; they keep nothing, so all rounds may share it."""


def build_sampler(local: LocalSettings) -> Sampler:
    """Return the sampler that `local.sampler` names.

    A user's `package.module:object` takes the group of settings; PluginError where it does not make
    a sampler.
    """
    name = local.sampler
    if name in SAMPLERS:
        return PLAIN.sampler
    made = plugins.make_part("local.sampler", name, local)
    if not isinstance(made, Sampler):
        raise PluginError(f"local.sampler {name!r} made {made!r}, which lacks start or step")
    return made


def init_sampler(local: LocalSettings, w: Float[Tensor, " M"], plan: RoundPlan) -> SamplerState:
    """Return the sampler of the settings before a round that starts at `w`."""
    made = build_sampler(local)
    return SamplerState(made, made.start(w, plan))
