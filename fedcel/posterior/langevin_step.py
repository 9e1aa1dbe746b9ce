"""The Langevin step: all parameters at once, in place."""

from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from fedcel.nets import FlatNet
from fedcel.posterior.langevin_constants import temperature_ratio
from fedcel.posterior.round_plan import RoundPlan
from fedcel.posterior.samplers import PLAIN, SamplerState


class RoundConstants(NamedTuple):
    """What is the same in all steps of a client's round, of the parameters that move.

    `scale` is a step size for each parameter in units of eta (G of Li et al., AAAI 2016, eq. 6),
    the same on all clients; it is constant in a round, which is why their correction term is 0.
    `shift` is a control variate against drift (Karimireddy et al., ICML 2020, eq. 3).
    """

    received: Float[Tensor, " M"]
    shift: Float[Tensor, " M"] | None
    scale: Float[Tensor, " M"] | None
    spread: Float[Tensor, " M"] | None  # of the noise, in units of that at scale 1
    own: torch.Generator
    common: torch.Generator
    xi: Float[Tensor, " M"]
    """On the processor. Writing a step's noise into fresh memory would cost half as much again."""
    motion: SamplerState = PLAIN


def moving_parameters(flat: FlatNet, freeze: bool) -> slice:
    """Return which parameters move: those of the head alone once the encoder is frozen."""
    return slice(flat.cut if freeze else 0, None)


def langevin_step(
    flat: FlatNet, ground: RoundConstants, plan: RoundPlan
) -> Float[Tensor, ""] | None:
    """Move: w <- w - eta G (g + decay w + kappa (w - received) + shift) + sqrt(G) noise.

    Of another sampler than the plain one this is what it gets: the gradient with all that is added
    to it, and the noise as `add_noise`.

    Returns 1 or 0, whether the loss's gradient g was clipped; None where nothing clips it.
    """
    part = moving_parameters(flat, plan.freeze)
    vector, gradient = flat.vector[part], flat.gradient[part]
    cut = clip_gradient(gradient, plan.clip) if plan.clip else None
    if plan.decay or plan.pull:
        gradient.add_(vector, alpha=plan.decay + plan.pull)
    if plan.pull:
        gradient.add_(ground.received, alpha=-plan.pull)
    if ground.shift is not None:
        gradient.add_(ground.shift)
    if ground.scale is not None:
        gradient.mul_(ground.scale)
    ground.motion.step(vector, gradient, partial(add_noise, ground, plan), plan)
    return cut


def add_noise(
    ground: RoundConstants, plan: RoundPlan, into: Float[Tensor, " M"], scale: float
) -> None:
    """Add `scale` times a fresh draw of a Langevin step's noise, the client's own and the shared.

    Scale 1 is for the plain step; see `fedcel.posterior.samplers`.
    """
    for deviation, stream in ((plan.noise, ground.own), (plan.common, ground.common)):
        if deviation:
            xi = ground.xi.normal_(generator=stream).to(into.device)
            if ground.spread is not None:
                xi.mul_(ground.spread)
            into.add_(xi, alpha=deviation * scale)


def clip_gradient(gradient: Float[Tensor, " M"], limit: float) -> Float[Tensor, ""]:
    """Scale a gradient to at most `limit` in L2 norm, in place; return 1 where it was longer."""
    norm = torch.linalg.vector_norm(gradient)
    gradient.mul_((limit / norm).clamp_max(1.0))
    return torch.gt(norm, limit).to(gradient.dtype)


def noise_scale(scale: Float[Tensor, " M"], plan: RoundPlan) -> Float[Tensor, " M"]:
    """Return by how much a parameter's noise differs from that at scale 1.

    sqrt(G), and less of the moving prior's cooling where the step is smaller.
    """
    if not plan.compensate:
        return scale.sqrt()
    usual = temperature_ratio(plan.rate, plan.pull, plan.steps)
    own = temperature_ratio(plan.rate * scale, plan.pull, plan.steps)
    return (scale / own * usual).sqrt()


def nominal_temperature(plan: RoundPlan) -> float:
    """Return the temperature that the added noise alone gives, in the limit of a small step.

    Minibatches, clients drawn at random and large steps add heat of their own.
    """
    if plan.compensate:
        return plan.temperature
    return plan.temperature * temperature_ratio(plan.rate, plan.pull, plan.steps)
