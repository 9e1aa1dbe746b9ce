"""A guess, and whether a model is better."""

import pytest
import torch
from scipy.stats import binomtest

from fedcel.metrics import chance_accuracy, is_at_chance


def test_a_guess_names_the_most_frequent_class() -> None:
    """Three of five are of class 2."""
    assert chance_accuracy(torch.tensor([2, 0, 2, 1, 2])) == pytest.approx(0.6)
    with pytest.raises(ValueError, match="0 labels"):
        chance_accuracy(torch.zeros(0, dtype=torch.int64))


@pytest.mark.parametrize("count", [10, 400, 10000])
@pytest.mark.parametrize("chance", [0.01, 0.1, 0.5, 1.0])
def test_the_interval_is_wilsons(count: int, chance: float) -> None:
    """As SciPy computes it, for every number of right answers that is near the border."""
    for right in range(0, count + 1, max(1, count // 200)):
        interval = binomtest(right, count).proportion_ci(method="wilson")
        if abs(interval.low - chance) > 1e-4:
            assert is_at_chance(right / count, count, chance) == (interval.low <= chance)


def test_no_image_tells_nothing() -> None:
    with pytest.raises(ValueError, match="0 cases"):
        is_at_chance(0.5, 0, 0.1)


def test_a_guess_among_numbers_of_people() -> None:
    """Counted by what they are, not by how large they are."""
    assert chance_accuracy(torch.tensor([10**12, 3, 10**12, 0])) == 0.5
