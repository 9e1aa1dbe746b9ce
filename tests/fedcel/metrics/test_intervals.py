"""Intervals: against tables and by hand, and as often right as they say."""

from math import log

import numpy as np
import pytest
import torch

from fedcel.metrics.intervals import mean_half_width, sample_half_width, share_interval

QUANTILE = 1.959964


def test_wilson_by_hand() -> None:
    """Of 16 of 16 down to 16 / (16 + 1.959964^2); of none of 4 up to the mirrored end."""
    low, high = share_interval(1.0, 16)
    assert (low, high) == (pytest.approx(16 / (16 + QUANTILE**2)), 1.0)
    low, high = share_interval(0.0, 4)
    assert (low, high) == (0.0, pytest.approx(QUANTILE**2 / (4 + QUANTILE**2)))
    assert share_interval(0.5, 10**6) == pytest.approx((0.49902, 0.50098), abs=1e-5)
    with pytest.raises(ValueError, match="0 cases, must be 1 or more"):
        share_interval(0.5, 0)


def test_student_and_the_floor_by_hand() -> None:
    """Student's 4.302653 with two degrees of freedom; -ln .025 where no case differs."""
    wide = mean_half_width(0.5, 0.01, 2, low=-9, high=9, rare=0)
    assert wide == pytest.approx(0.4302653)
    assert sample_half_width(torch.ones(10), low=0, high=1) == pytest.approx(-log(0.025) / 10)
    assert sample_half_width(torch.tensor([0.25]), low=0, high=1) == 0.75
    assert sample_half_width(torch.ones(2), low=0, high=1) == 1
    assert sample_half_width(torch.zeros(7), low=0, high=0) == 0


@pytest.mark.parametrize("chance", [0.001, 0.02, 0.1, 0.5, 0.97])
@pytest.mark.parametrize("count", [4, 30, 400])
def test_samples_hold_their_mean(chance: float, count: int) -> None:
    """A coin that falls with any chance: in 95 % of 1 000 seeds, less three standard errors."""
    coins = torch.from_numpy(np.random.default_rng(1).random((1000, count)) < chance).double()
    held = [abs(float(c.mean()) - chance) <= sample_half_width(c, low=0, high=1) for c in coins]
    assert np.mean(held) > 0.929
