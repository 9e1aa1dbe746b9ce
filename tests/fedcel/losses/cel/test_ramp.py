"""The weight of a loss during training: that of a federation's rounds."""

import pytest

from fedcel.losses.cel import ramp_weight
from fedcel.settings import parse_settings


def test_by_hand() -> None:
    """0 in the warm-up, half-way at the middle of the ramp, then constant."""
    weights = [
        ramp_weight(step, 100, warm_up=10, ramp=0.6, end=0.8) for step in (1, 10, 35, 60, 99)
    ]
    assert weights == pytest.approx([0, 0, 0.4, 0.8, 0.8])
    assert ramp_weight(4, 5, warm_up=5) == 0  # never, in a training that ends before


def test_a_round_has_the_same_weight() -> None:
    """Of the defaults and of others, in every round."""
    for options in ({}, {"cel.warm-up": 2, "cel.ramp": 0.3}):
        settings = parse_settings({"rounds": 40, "cel.kind": "plain", **options})
        cel = settings.cel
        for number in range(1, 41):
            weight = ramp_weight(number, 40, warm_up=cel.warm_up, ramp=cel.ramp)
            assert cel.find_gamma(number, 40, 1.0) == weight


def test_bad_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="ramp is 60"):
        ramp_weight(1, 10, ramp=60)
    with pytest.raises(ValueError, match="step is -1"):
        ramp_weight(-1, 10)
