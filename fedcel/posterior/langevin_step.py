"""One step of the chains of K clients: gradient and noise, and the sampler that moves them."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fedcel import plugins
from fedcel.errors import PluginError
from fedcel.posterior.sampler import NoiseAdder, Sampler
from fedcel.posterior.sampler_contract import SAMPLER_CHECKS, SamplerCase
from fedcel.posterior.schedule import LANGEVIN, LocalSettings, RoundPlan
from fedcel.short_repr import show_shapes
from fedcel.tensors import State, require_state


@show_shapes
@dataclass(frozen=True)
class StepNoise:
    """Langevin noise of a step of K clients, a `NoiseAdder` for all their rows.

    Attributes:
        deviations: Standard deviation of each client's noise.
        streams: Random stream of each client.
        buffer: Memory on the processor, used again by each step: fresh memory costs half as much
            again.
    """

    deviations: Sequence[float]
    streams: Sequence[torch.Generator]
    buffer: Float[Tensor, " M"]

    def __call__(self, target: Float[Tensor, "K M"], scale: float) -> None:
        """Add `scale` times a fresh draw to the rows of all clients."""
        for k in range(len(self.deviations)):
            self.add_to_client(k, target[k], scale)

    def add_to_client(self, k: int, row: Float[Tensor, " M"], scale: float) -> None:
        """Add `scale` times a fresh draw of client k's noise; without noise none is drawn."""
        if deviation := self.deviations[k] * scale:
            draw = self.buffer.normal_(generator=self.streams[k]).to(row.device)
            row.add_(draw, alpha=deviation)


class Langevin:
    """w <- w - eta gradient + noise, of one client or of K: Welling and Teh, ICML 2011, eq. 4."""

    bounds_information = True

    def start(self, w: Float[Tensor, "*k M"], plan: RoundPlan) -> State:
        """Return an empty state."""
        return {}

    def step(
        self,
        state: State,
        w: Float[Tensor, "*k M"],
        gradient: Float[Tensor, "*k M"],
        add_noise: NoiseAdder,
        plan: RoundPlan,
    ) -> State:
        """Move `w` in place; the state stays empty."""
        w.add_(gradient, alpha=-plan.rate)
        add_noise(w, 1.0)
        return state


class ClientByClient:
    """A user's sampler, which knows one client, for K clients one after the other.

    Args:
        sampler: Moves one client's parameters.
    """

    bounds_information = False

    def __init__(self, sampler: Sampler) -> None:
        self.sampler = sampler

    def start(self, w: Float[Tensor, "K M"], plan: RoundPlan) -> list[State]:
        """Make each client's state."""
        return [self.sampler.start(row, plan) for row in w]

    def step(
        self,
        state: Sequence[State],
        w: Float[Tensor, "K M"],
        gradient: Float[Tensor, "K M"],
        add_noise: StepNoise,
        plan: RoundPlan,
    ) -> list[State]:
        """Move each client's row."""
        adders = [partial(add_noise.add_to_client, k) for k in range(len(state))]
        rows = zip(state, w, gradient, adders, strict=True)
        return [self.sampler.step(*row, plan) for row in rows]


StackedSampler = Langevin | ClientByClient
"""Steps of K clients at once."""


def build_sampler(local: LocalSettings) -> StackedSampler:
    """Build the sampler that `local.sampler` names.

    Args:
        local: The settings; a user's sampler is made of them.

    Returns:
        Langevin's, or a user's, client by client.

    Raises:
        PluginError: The import string does not lead to a sampler, or to one that breaks its
            contract.
    """
    if local.sampler == LANGEVIN:
        return Langevin()
    part = plugins.PartName("local.sampler", local.sampler, "check_sampler")
    _check_own_sampler(part, local)
    checks = {name: partial(require_state, method=name) for name in ("start", "step")}
    return ClientByClient(plugins.guard_part(part, make_client_sampler(local), **checks))


def make_client_sampler(local: LocalSettings) -> Sampler:
    """Make the sampler of one client that `local.sampler` names, unguarded and unchecked.

    Args:
        local: The settings; a user's sampler is made of them.

    Returns:
        The sampler.

    Raises:
        PluginError: The import string does not lead to a sampler.
    """
    if local.sampler == LANGEVIN:
        return Langevin()
    sampler = plugins.make_part("local.sampler", local.sampler, local)
    if not isinstance(sampler, Sampler):
        raise PluginError(
            f"local.sampler {local.sampler!r} made {sampler!r}, which lacks start or step"
        )
    return sampler


@lru_cache(maxsize=16)
def _check_own_sampler(part: plugins.PartName, local: LocalSettings) -> None:
    case = SamplerCase(partial(make_client_sampler, local), local.count_steps(local.batch_size))
    plugins.check_contract(part, SAMPLER_CHECKS, case)


@show_shapes
class LangevinContext(NamedTuple):
    """Chains of K clients in a round, of the M parameters that move.

    Attributes:
        plan: The round's constants.
        moving: The part of a net's vector that moves; positions, where parameters are frozen.
        received: The model that the round starts from.
        noise: The noise of each client's steps.
        sampler: Moves the parameters.
    """

    plan: RoundPlan
    moving: slice | Int[Tensor, " M"]
    received: Float[Tensor, " M"]
    noise: StepNoise
    sampler: StackedSampler

    @property
    def bounds_information(self) -> bool:
        """Whether every client's noise bounds what its update tells.

        Without noise nothing does, and what a user's sampler does with it is not known.
        """
        return self.sampler.bounds_information and min(self.noise.deviations) > 0


def langevin_step(
    w: Float[Tensor, "K M"], gradients: Float[Tensor, "K M"], context: LangevinContext, state: Any
) -> tuple[Any, dict[str, Float[Tensor, " K"]]]:
    """Move K clients: w <- w - eta (g + decay w + kappa (w - received)) + noise.

    A user's sampler gets the sum in brackets as its gradient, and the noise as `add_noise`.

    Args:
        w: The parameters that move (K, M), in place.
        gradients: g of the losses at them (K, M), which is overwritten.
        context: The round's chains.
        state: The sampler's state.

    Returns:
        The sampler's next state, and measurements of the step: `clipped` (1 or 0, whether g was
        clipped) and `update-information` (nats, see `step_information`), where they apply.
    """
    plan, measures = context.plan, {}
    if plan.clip:
        measures["clipped"] = clip_gradient(gradients, plan.clip)
    if context.bounds_information:
        measures["update-information"] = step_information(
            gradients, plan.rate, context.noise.deviations
        )
    if plan.decay or plan.pull:
        gradients.add_(w, alpha=plan.decay + plan.pull)
    if plan.pull:
        gradients.add_(context.received, alpha=-plan.pull)
    return context.sampler.step(state, w, gradients, context.noise, plan), measures


def clip_gradient(gradients: Float[Tensor, "K M"], limit: float) -> Float[Tensor, " K"]:
    """Scale gradients to at most `limit` in L2 norm, in place; return 1 where one was longer."""
    norm = torch.linalg.vector_norm(gradients, dim=-1)
    gradients.mul_((limit / norm).clamp_max(1.0)[..., None])
    return torch.gt(norm, limit).to(gradients.dtype)


def step_information(
    gradients: Float[Tensor, "K M"], rate: float, noise: Sequence[float]
) -> Float[Tensor, " K"]:
    """Compute a step's share of what an update tells at most about its client's images.

    Compared are two chains that start at the received model and add the same noise: the client's,
    and the prior's, which sees no image and follows the priors' pulls only. By the chain rule their
    divergence is the expectation over the client's chain of sum_t |eta g_t|^2 / (2 v): the
    difference of both drifts in units of the noise. The priors' pulls are in both and cancel. One
    draw; its mean over the client's chain bounds I(delta_k; D_k | received).

    `gradients` are those of the losses only, clipped where they are; `noise` is the standard
    deviation of each client's noise per step, above 0. The result is in nats.

    References:
        Pensia, Jog and Loh, ISIT 2018, theorem 1 (the information of noisy iterations adds up);
        Negrea et al., NeurIPS 2019, section 3 (a prior's chain instead of its last state).
    """
    # One pass, six times as fast as a sum of squares in float64, and within 1e-4 of it.
    squares: Tensor = torch.linalg.vector_norm(gradients, dim=-1).double().square()
    return squares * squares.new_tensor([0.5 * (rate / deviation) ** 2 for deviation in noise])
