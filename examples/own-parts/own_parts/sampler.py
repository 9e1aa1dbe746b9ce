"""A sampler with momentum: stochastic gradient Hamiltonian Monte Carlo."""

from functools import cache

import torch
from torch import Tensor

from fedcel.losses.cel import State
from fedcel.posterior import NoiseAdder, RoundPlan
from fedcel.settings import LocalSettings

FRICTION = 0.3  # a


class Hamiltonian:
    """v <- (1 - a) v + a (noise - eta gradient); w <- w + v: Chen, Fox and Guestrin, ICML 2014, 15.

    In the long run w moves as far per step as with plain Langevin, for the gradient and for the
    noise. A round starts at rest, so the j-th last push has come only c_j = 1 - (1 - a)^j of its
    way when the round ends: the noise is raised to fit that. Exact for small steps, like Langevin.
    """

    def __init__(self, local: LocalSettings) -> None:
        pass  # `plan.steps` has the steps of a client's round, which `local.epochs` makes differ

    def start(self, w: Tensor, plan: RoundPlan) -> State:
        """Return no velocity: the server's mean of models has none."""
        return {"velocity": torch.zeros_like(w)}

    def step(
        self, state: State, w: Tensor, gradient: Tensor, add_noise: NoiseAdder, plan: RoundPlan
    ) -> State:
        """Push, then move `w` in place."""
        v = state["velocity"].mul_(1 - FRICTION).add_(gradient, alpha=-FRICTION * plan.rate)
        add_noise(v, FRICTION * raise_noise(plan.steps))
        w.add_(v)
        return {"velocity": v}


@cache
def raise_noise(steps: int) -> float:
    """Return the factor of the noise in a round of so many steps."""
    shares = [1 - (1 - FRICTION) ** j for j in range(1, steps + 1)]
    return float((sum(shares) / sum(c * c for c in shares)) ** 0.5)
