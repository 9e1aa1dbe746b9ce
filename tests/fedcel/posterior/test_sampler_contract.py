"""A user's sampler that breaks its contract is refused before a run, or named in it."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from fedcel.errors import ContractError, FailedError, PluginError
from fedcel.losses.cel import State
from fedcel.posterior import NoiseAdder, RoundPlan, StepNoise, build_sampler
from fedcel.settings import LocalSettings
from fedcel.testing import check_sampler


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


def change(
    step: Callable[..., Any] = lambda own, *arguments: own(*arguments), **attributes: float
) -> type[Steps]:
    """Return the sampler with one fault: `step` has its own step and that one's arguments."""

    class Changed(Steps):
        def step(self, *arguments: Any) -> Any:
            return step(super().step, *arguments)

    return type("Changed", (Changed,), attributes)


def leave_the_last(own: Callable[..., Any], state: State, w: Tensor, *arguments: Any) -> State:
    """Move all but the last value of few."""
    last = w[..., -1:].clone()
    own(state, w, *arguments)
    if 20 < w.numel() < 100:
        w[..., -1:] = last
    return state


def add_own_noise(own: Callable[..., Any], state: State, w: Tensor, *arguments: Any) -> Any:
    w.add_(torch.randn(w.shape), alpha=arguments[-1].noise(1.0))
    return own(state, w, *arguments)


uphill, cold, loud = change(sign=1.0), change(scale=0.0), change(scale=1.2)
still = change(lambda own, state, w, *arguments: own(state, w.clone(), *arguments))
private, partial = change(add_own_noise), change(leave_the_last)
silent = change(lambda own, *arguments: (own(*arguments), None)[1])
narrow = change(lambda own, state, w: state)
biased = change(
    lambda own, state, w, gradient, add_noise, plan: own(
        state, w, gradient - (0.2 if plan.noise else 0.0), add_noise, plan
    )
)
limited = change(limit=7.0)

BROKEN = {
    "uphill": "breaks .*against the gradient; it moved along it",
    "still": "breaks .*must move w in place; it stands still",
    "cold": "breaks .*by calling add_noise; a round went by without a call",
    "private": "breaks .*not from torch's global stream",
    "silent": "breaks .*`step` must return the state, .*it returned NoneType",
    "narrow": "failed: TypeError: .*positional arguments",
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_sampler_that_breaks_its_contract_is_refused(name: str) -> None:
    """By setting, import string, the line of the contract, and the suite that shows it."""
    with pytest.raises(PluginError, match=f"local.sampler .*:{name}' {BROKEN[name]}") as refusal:
        build_sampler(LocalSettings(sampler=f"{__name__}:{name}"))
    assert "fedcel.testing.check_sampler" in str(refusal.value)


def test_a_sampler_that_fails_later_is_named() -> None:
    """FailedError, with the user's file and line."""
    sampler = build_sampler(LocalSettings(sampler=f"{__name__}:limited"))
    plan = RoundPlan(0.1, 0.0, 0.0, 0.0, False, 1.0)
    noise = StepNoise([0.0], [torch.Generator()], torch.empty(3))
    words = r"limited' failed: ArithmeticError: beyond the limit \(.*test_sampler_contract.py, line"
    with pytest.raises(FailedError, match=words):
        sampler.step([{}], torch.full((1, 3), 8.0), torch.ones(1, 3), noise, plan)


def test_plain_langevin_steps() -> None:
    """Every line of it."""
    check_sampler("langevin")


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("loud", "posterior's variance at temperature 1 .* missed by [+]"),
        ("biased", "posterior's mean at temperature 1"),
        ("partial", "every parameter of the head must move"),
    ],
)
def test_a_line_of_the_contract_is_broken(name: str, line: str) -> None:
    """By a sampler with one fault."""
    with pytest.raises(ContractError, match=line):
        check_sampler(f"{__name__}:{name}")
