"""The built-in sampler holds its contract, and others break its lines."""

import pytest
from torch import Tensor

from fedcel.errors import ContractError
from fedcel.losses.cel import State
from fedcel.posterior import NoiseAdder, RoundPlan
from fedcel.testing import check_sampler
from tests.fedcel.posterior.test_sampler_contract import Steps


class Loud(Steps):
    """Adds a fifth too much noise."""

    scale = 1.2


class Biased(Steps):
    """Drifts where it samples."""

    def step(
        self, state: State, w: Tensor, gradient: Tensor, add_noise: NoiseAdder, plan: RoundPlan
    ) -> State:
        return super().step(state, w, gradient - (0.2 if plan.noise else 0.0), add_noise, plan)


class Partial(Steps):
    """Leaves the last value where it is, of few."""

    def step(
        self, state: State, w: Tensor, gradient: Tensor, add_noise: NoiseAdder, plan: RoundPlan
    ) -> State:
        """Move all but the last."""
        last = w[..., -1:].clone()
        state = super().step(state, w, gradient, add_noise, plan)
        if 20 < w.numel() < 100:
            w[..., -1:] = last
        return state


def test_plain_langevin_steps() -> None:
    """Every line of it."""
    check_sampler("langevin")


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("Loud", "posterior's variance at temperature 1 .* missed by [+]"),
        ("Biased", "posterior's mean at temperature 1"),
        ("Partial", "every parameter of the head must move"),
    ],
)
def test_a_line_of_the_contract_is_broken(name: str, line: str) -> None:
    """By a sampler with one fault."""
    with pytest.raises(ContractError, match=line):
        check_sampler(f"{__name__}:{name}")
