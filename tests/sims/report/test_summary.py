"""Means and intervals with known answers."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest

from sims.report.read import read
from sims.report.summary import Estimate, estimate, summarise

Make = Callable[..., Path]


def test_interval_by_hand() -> None:
    """1, 2, 3: sd 1, half-width 4.30265/sqrt(3) (Student, 2 degrees of freedom)."""
    found = estimate([1.0, 2.0, None, 3.0])
    assert (found.mean, found.sd, found.n) == (2.0, 1.0, 3)
    assert found.half == pytest.approx(4.302652730 / math.sqrt(3))


@pytest.mark.parametrize("values", [[1.0], [1.0, 2.0]])
def test_no_interval_below_three(values: list[float]) -> None:
    """One or two seeds give no interval."""
    assert estimate(values).half is None


def test_nothing_and_everything() -> None:
    """No value is no mean; "all" stays infinite."""
    assert estimate([None]) == Estimate()
    assert estimate([math.inf, 1.0]).mean == math.inf


def test_groups(make_bench: Make) -> None:
    """One summary a variant, seeds inside, decoder over 3 x 3 attack runs."""
    found = summarise(read(make_bench(seeds=3)))
    assert [s.variant for s in found] == ["none", "cluster", "gated"]
    assert found[1].seeds == (0, 1, 2)
    assert found[1].decoder_mse.n == 9
    assert found[1].bits.mean == pytest.approx(0.54 + 0.02)  # seeds 0, 1, 2 add 0, .02, .04
    assert found[1].bits_of_seed[2] == pytest.approx(0.58)
