"""Search for noise: levels by their definition, and one claim that implies another."""

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedcel.leakage.noise_search import (
    LEAST_NOISE,
    MOST_NOISE,
    SEARCH_STEPS,
    bracket_noise,
    noise_level,
)

STEP = (MOST_NOISE / LEAST_NOISE) ** (1 / (2**SEARCH_STEPS - 2))


@given(st.floats(LEAST_NOISE, MOST_NOISE))
def test_a_threshold_is_bracketed(threshold: float) -> None:
    """By neighbouring levels, with as many questions as there are steps."""
    asked = []

    def is_little(noise: float) -> bool:
        asked.append(noise)
        return noise <= threshold

    low, high = bracket_noise(is_little)
    assert low <= threshold < high and len(asked) == SEARCH_STEPS
    assert high == inf or high / low == pytest.approx(STEP)


def test_ends() -> None:
    """No noise is little enough, or all is."""
    assert bracket_noise(lambda _: False) == (0.0, LEAST_NOISE)
    assert bracket_noise(lambda _: True) == (pytest.approx(MOST_NOISE), inf)
    assert noise_level(1) == LEAST_NOISE


@given(st.lists(st.integers(0, 9), min_size=256, max_size=256), st.integers(0, 9))
def test_a_looser_limit_brackets_no_less(losses: list[int], limit: int) -> None:
    """Whatever the losses at each level, not only where they rise with the noise."""
    at = {noise_level(number): loss for number, loss in enumerate(losses)}
    tight, _ = bracket_noise(lambda noise: at[noise] <= limit)
    loose, _ = bracket_noise(lambda noise: at[noise] <= limit + 1)
    assert tight <= loose
