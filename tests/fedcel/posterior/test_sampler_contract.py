"""A user's sampler that breaks its contract is refused before a run, or named in it."""

import pytest
import torch
from torch import Tensor

from fedcel.errors import FailedError, PluginError
from fedcel.losses.cel import State
from fedcel.posterior import NoiseAdder, RoundPlan, StepNoise, build_sampler
from fedcel.settings import LocalSettings


class Steps:
    """Plain Langevin steps."""

    sign, scale, limit = -1.0, 1.0, float("inf")

    def __init__(self, local: LocalSettings) -> None:
        self.steps = local.steps

    def start(self, w: Tensor, plan: RoundPlan) -> State:
        return {}

    def step(
        self, state: State, w: Tensor, gradient: Tensor, add_noise: NoiseAdder, plan: RoundPlan
    ) -> State:
        if w.abs().max() > self.limit:
            raise ArithmeticError("beyond the limit")
        w.add_(gradient, alpha=self.sign * plan.rate)
        if self.scale:
            add_noise(w, self.scale)
        return state


class Uphill(Steps):
    sign = 1.0


class Still(Steps):
    """Moves a copy."""

    def step(
        self, state: State, w: Tensor, gradient: Tensor, add_noise: NoiseAdder, plan: RoundPlan
    ) -> State:
        return super().step(state, w.clone(), gradient, add_noise, plan)


class Cold(Steps):
    """Adds no noise."""

    scale = 0.0


class Private(Steps):
    """Draws noise of its own."""

    def step(
        self, state: State, w: Tensor, gradient: Tensor, add_noise: NoiseAdder, plan: RoundPlan
    ) -> State:
        w.add_(torch.randn(w.shape), alpha=plan.noise(1.0))
        return super().step(state, w, gradient, add_noise, plan)


class Silent(Steps):
    def step(  # type: ignore[override]
        self, state: State, w: Tensor, gradient: Tensor, add_noise: NoiseAdder, plan: RoundPlan
    ) -> None:
        super().step(state, w, gradient, add_noise, plan)


class Narrow(Steps):
    """Takes too few arguments."""

    def step(self, state: State, w: Tensor) -> State:  # type: ignore[override]
        return state


class Limited(Steps):
    """Raises far from 0."""

    limit = 7.0


BROKEN = {
    "Uphill": "breaks .*against the gradient; it moved along it",
    "Still": "breaks .*must move w in place; it stands still",
    "Cold": "breaks .*by calling add_noise; a round went by without a call",
    "Private": "breaks .*not from torch's global stream",
    "Silent": "breaks .*`step` must return the state, .*it returned NoneType",
    "Narrow": "failed: TypeError: .*positional arguments",
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_sampler_that_breaks_its_contract_is_refused(name: str) -> None:
    """By setting, import string, the line of the contract, and the suite that shows it."""
    with pytest.raises(PluginError, match=f"local.sampler .*:{name}' {BROKEN[name]}") as refusal:
        build_sampler(LocalSettings(sampler=f"{__name__}:{name}"))
    assert "fedcel.testing.check_sampler" in str(refusal.value)


def test_a_sampler_that_fails_later_is_named() -> None:
    """FailedError, with the user's file and line."""
    sampler = build_sampler(LocalSettings(sampler=f"{__name__}:Limited"))
    plan = RoundPlan(0.1, 0.0, 0.0, 0.0, False, 1.0)
    noise = StepNoise([0.0], [torch.Generator()], torch.empty(3))
    words = r"Limited' failed: ArithmeticError: beyond the limit \(.*test_sampler_contract.py, line"
    with pytest.raises(FailedError, match=words):
        sampler.step([{}], torch.full((1, 3), 8.0), torch.ones(1, 3), noise, plan)
