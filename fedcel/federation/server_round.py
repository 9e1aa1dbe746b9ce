"""What the server does between two rounds; every engine has the same."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from fedcel.federation.aggregation import ServerState, slide
from fedcel.posterior import round_plan
from fedcel.posterior.langevin_step import noise_scale
from fedcel.seeding import generator
from fedcel.settings.parsing import Settings, burn_in_rounds

FORGET = 0.95  # of the running mean of squares, each round


def advance(
    settings: Settings, state: ServerState, delta: Float[Tensor, " P"], cut: int, total: int
) -> ServerState:
    """Return the state after the round's mean delta; `cut` parameters are the encoder's.

    The preconditioner learns until burn-in ends and is fixed from then on: a chain whose step
    sizes go on changing with its state has another target.
    """
    plan = round_plan.plan(settings, state.round + 1, 1.0, total)
    s, frozen = settings.strategy, cut if plan.freeze else 0
    after = slide(state, delta, s.momentum, s.gain, frozen, s.damped)
    burnt = state.round >= burn_in_rounds(settings)
    if settings.local.precondition == "none" or burnt:
        return after
    speed = (delta / (plan.rate * plan.steps)).square()
    squares = speed if state.squares is None else torch.lerp(speed, state.squares, FORGET)
    return after._replace(squares=squares)


def topped_up(
    settings: Settings, state: ServerState, delta: Float[Tensor, " P"], share: float, total: int
) -> Float[Tensor, " P"]:
    """Return a round's delta with the shared noise that it lacks where clients were left out.

    Weights that add up to `share` make a step that much shorter, whose shared noise needs `share`
    of its variance; being the same everywhere it adds up to share^2 of it. The clients' own noise
    is right for its weights as it is.
    """
    plan = round_plan.plan(settings, state.round + 1, 1.0, total)
    if not plan.common or share >= 1:
        return delta
    scale = step_sizes(state)
    g = torch.ones(()) if scale is None else scale
    # A step's noise is pulled back by those after it, by the priors at least.
    q = 1 - plan.rate * (plan.pull + plan.decay) * g
    left = sum(q ** (2 * step) for step in range(plan.steps))
    spread = 1.0 if scale is None else noise_scale(scale, plan)
    xi = torch.randn(delta.shape, generator=generator(settings.seed, "lost", state.round + 1))
    return delta + plan.common * math.sqrt(share * (1 - share)) * spread * left**0.5 * xi


def step_sizes(state: ServerState) -> Float[Tensor, " P"] | None:
    """Return G = 1/(1 + r/mean r), r the root of the squares, scaled to mean 1; None before any.

    The squares are of the model's own movement, noise and the last G included, so that G evens
    out less than gradients would; any G that is fixed leaves the chain's target as it is.

    RMSprop's preconditioner (Li et al., AAAI 2016, eq. 6) with their lambda at the mean of r, which
    frees it of units: the smallest slopes have at most twice the step of the mean one.
    """
    if state.squares is None:
        return None
    root = state.squares.sqrt()
    scale = 1 / (1 + root / root.mean().clamp_min(torch.finfo(root.dtype).tiny))
    return scale / scale.mean()
