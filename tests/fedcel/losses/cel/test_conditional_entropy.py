"""Penalties and shares against closed forms, and the table of kinds."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedcel.errors import SettingsError
from fedcel.losses.cel import Plain
from fedcel.losses.cel.conditional_entropy import (
    ClassShare,
    channel_penalty,
    class_shares,
    linear_penalty,
    log_penalty,
)
from tests.fedcel.losses.single import single

SPREADS = torch.tensor([0.0046875, 0.0079167, 0.0079167], dtype=torch.float64)


def test_log_by_hand() -> None:
    """Spreads of the 12-point example at tau .002, weighed 4/12 each."""
    value = log_penalty(SPREADS, 0.002)
    hand = torch.tensor([0.85147, 1.37545, 1.37545], dtype=torch.float64)
    torch.testing.assert_close(value, hand, rtol=0, atol=1e-5)
    loss = class_shares(torch.tensor([4.0, 4, 4], dtype=torch.float64), "batch-share") @ value
    assert abs(loss.item() - 1.20079) < 1e-5


def test_log_is_flat_below_the_threshold() -> None:
    """All three spreads lie below tau .05: no penalty, no gradient."""
    v = SPREADS.clone().requires_grad_()
    loss = log_penalty(v, 0.05)
    (slope,) = torch.autograd.grad(loss.sum(), v)
    assert not loss.any()
    assert not slope.any()


def test_channel_by_hand() -> None:
    """D = 2, sigma = .5, v = D sigma^2 (e - 1): each of the two values carries 1/2 nat."""
    v = torch.tensor([0.0, 0.5 * (math.e - 1)], dtype=torch.float64)
    hand = torch.tensor([0.0, 1.0], dtype=torch.float64)
    torch.testing.assert_close(channel_penalty(v, 2, 0.5), hand)


@settings(deadline=None, max_examples=30)
@given(st.floats(1e-9, 1e3), st.floats(1.01, 10), st.integers(1, 512), st.floats(0.01, 2))
def test_penalties_rise_and_channel_is_below_its_tangent(
    v: float, factor: float, features: int, sigma: float
) -> None:
    """More spread never costs less; channel is concave: at most v / (2 sigma^2)."""
    pair = torch.tensor([v, v * factor], dtype=torch.float64)
    for value in (
        linear_penalty(pair),
        log_penalty(pair, 0.01),
        channel_penalty(pair, features, sigma),
    ):
        assert 0 <= value[0] <= value[1]
    assert (channel_penalty(pair, features, sigma) <= pair / (2 * sigma**2) * (1 + 1e-9)).all()


def test_gradients() -> None:
    """Each penalty's derivative, away from the kink of the log."""
    v = torch.tensor([0.01, 0.5, 3.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(linear_penalty, v)
    assert torch.autograd.gradcheck(lambda v: log_penalty(v, 0.002), v)
    assert torch.autograd.gradcheck(lambda v: channel_penalty(v, 64, 0.3), v)


@pytest.mark.parametrize(
    ("share", "hand"),
    [("batch-share", [0.6, 0, 0.4]), ("mean-present", [0.5, 0, 0.5]), ("none", [1.0, 0, 1])],
)
def test_shares(share: ClassShare, hand: list[float]) -> None:
    """Counts 3, 0, 2; absent classes have no share, and no counts give no NaN."""
    torch.testing.assert_close(class_shares(torch.tensor([3.0, 0, 2]), share), torch.tensor(hand))
    assert not class_shares(torch.zeros(3), share).any()


def charge(sigma: float, features: int, **options: Any) -> Tensor:
    """Return what the plain loss charges for the spreads."""
    charged: Tensor = single(Plain(**options), 3, features, sigma).charge(SPREADS)
    return charged


def test_options_choose_the_penalty() -> None:
    """Names lead to their functions; the log's default threshold is .125 sigma^2 D."""
    assert charge(0.0, 64, penalty="linear") is SPREADS
    torch.testing.assert_close(charge(0.3, 64), channel_penalty(SPREADS, 64, 0.3))
    torch.testing.assert_close(charge(0.1, 2, penalty="log"), log_penalty(SPREADS, 0.0025))
    torch.testing.assert_close(
        charge(0.0, 2, penalty="log", threshold=0.002), log_penalty(SPREADS, 0.002)
    )


@pytest.mark.parametrize("penalty", ["channel", "log"])
def test_no_noise_is_refused_where_it_divides(penalty: str) -> None:
    """The message names the setting and the remedy."""
    with pytest.raises(SettingsError, match=r"net\.noise is 0\.0, must be above 0.*linear"):
        charge(0.0, 64, penalty=penalty)
