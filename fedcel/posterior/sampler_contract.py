"""Contract of samplers, held before a run; `check_sampler` adds that they sample."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from fedcel.plugins import require
from fedcel.posterior.sampler import Sampler
from fedcel.posterior.schedule import LocalSettings, RoundPlan
from fedcel.tensors import require_state
from fedcel.torch_state import make_twice

_SIZE, _RATE, _NOISE = 8, 0.05, 0.01  # parameters that move; of a step


class SamplerCase(NamedTuple):
    """A sampler to hold to its contract.

    Attributes:
        build: Makes the sampler anew.
        steps: Steps of a round.
    """

    build: Callable[[], Sampler]
    steps: int

    def play_round(
        self, noise: float, gradient: Float[Tensor, " M"]
    ) -> tuple[Float[Tensor, " M"], int]:
        """Return how far a round of a constant gradient moves, and how often noise was added."""
        plan = RoundPlan(
            _RATE, 0.0, 0.0, noise**2, False, 1.0, local=LocalSettings(steps=self.steps)
        )
        stream = torch.Generator().manual_seed(1)
        sampler, w = self.build(), torch.linspace(-1, 1, _SIZE)
        before, calls = w.clone(), 0

        def add_noise(target: Tensor, scale: float) -> None:
            nonlocal calls
            calls += 1
            shape = tuple(target.shape)
            require(shape == (_SIZE,), f"`add_noise` is for tensors like w; it was given {shape}")
            target.add_(torch.randn(_SIZE, generator=stream), alpha=noise * scale)

        state = require_state(sampler.start(w, plan), "start")
        for _ in range(self.steps):
            moved = sampler.step(state, w, gradient.clone(), add_noise, plan)
            state = require_state(moved, "step")
        require(bool(w.isfinite().all()), "`step` must leave w finite")
        return w - before, calls


def _check_descent(case: SamplerCase) -> None:
    gradient = torch.linspace(1, 2, _SIZE)
    move, _ = case.play_round(0.0, gradient)
    require(bool(move.any()), "`step` must move w in place; it stands still after a round")
    line = "without noise `step` must move w against the gradient"
    require(bool((move * gradient).sum() < 0), f"{line}; it moved along it")


def _check_noise(case: SamplerCase) -> None:
    gradient = torch.linspace(1, 2, _SIZE)
    (move, calls), (move_again, _) = make_twice(lambda: case.play_round(_NOISE, gradient))
    line = "`step` must add the noise of a Langevin step to w, by calling add_noise"
    require(calls > 0, f"{line}; a round went by without a call")
    require(not torch.equal(move, case.play_round(0.0, gradient)[0]), f"{line}; it made no odds")
    require(torch.equal(move, move_again), "the same noise must give the same steps, to the bit")


SAMPLER_CHECKS: tuple[Callable[[SamplerCase], None], ...] = (_check_descent, _check_noise)
"""Before a run and in tests; each raises ContractError where a line of the contract breaks."""
