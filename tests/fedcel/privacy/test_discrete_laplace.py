"""The project's own sampler has the law it claims, exactly, and that of OpenDP."""

import copy
import math
import multiprocessing
import pickle
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare, dlaplace, kstest
from scipy.stats import laplace as continuous

from fedcel.privacy import LaplaceAnswers
from fedcel.privacy.discrete_laplace import (
    GridNoise,
    add_grid_noise,
    choose_integer_grid,
    draw_below,
    draw_discrete_laplace,
)
from fedcel.privacy.epsilon_range import LARGEST_GRID

ALPHA = 1e-6  # chance that a sound sampler fails a test of its law
SAMPLES = 200_000


def misfit(draws: np.ndarray, law: np.ndarray) -> float:
    """Return the p-value of counts of 0, 1, ... against chances; the last takes all beyond."""
    counts = np.bincount(np.minimum(draws, len(law) - 1), minlength=len(law))
    return float(chisquare(counts, law / law.sum() * len(draws)).pvalue)


def chances(t: int, most: int = 12) -> np.ndarray:
    """Return the discrete Laplace law of -most..most, the ends with their tails."""
    law = dlaplace(1 / t).pmf(np.arange(-most, most + 1))
    law[[0, -1]] = dlaplace(1 / t).cdf(-most)
    return law


@pytest.mark.parametrize("t", [1, 2, 3, 7])
def test_noise_has_the_closed_form_law(t: int) -> None:
    """Chi-square on every whole number; the scale beside it is told apart."""
    assert chances(t).sum() == pytest.approx(1)
    draws = np.clip(draw_discrete_laplace(t, SAMPLES), -12, 12) + 12
    assert misfit(draws, chances(t)) > ALPHA
    assert misfit(draws, chances(t + 1)) < ALPHA


@pytest.mark.parametrize("t", [2**29 + 1, 2**30, 3**19])
def test_noise_of_a_fine_grid_is_nearly_continuous(t: int) -> None:
    """Kolmogorov-Smirnov against the continuous law of that scale, and of one 5 % off."""
    draws = draw_discrete_laplace(t, SAMPLES) / t
    assert kstest(draws, continuous().cdf).pvalue > ALPHA
    assert kstest(draws, continuous(scale=1.05).cdf).pvalue < ALPHA


def test_words_beyond_the_last_whole_multiple_are_drawn_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Their remainders would else be the small numbers, a little too often."""
    words = [np.array([2**64 - 1, 7, 2**64 - 2], np.uint64), np.array([5], np.uint64)]
    monkeypatch.setattr("os.urandom", lambda size: words.pop(0).tobytes())
    # 2^64 = 1 mod 3: the last word is one too many, the one before it is not.
    assert draw_below(3, 3).tolist() == [5 % 3, 7 % 3, (2**64 - 2) % 3]


def test_any_number_can_be_drawn() -> None:
    """How many are drawn at once decides nothing; short draws have no bias to small ones."""
    for count in (0, 1, 2, 17):
        assert draw_discrete_laplace(3, count).shape == (count,)
    draws = np.concatenate([draw_discrete_laplace(2, 1) for _ in range(4_000)])
    assert misfit(np.clip(draws, -12, 12) + 12, chances(2)) > ALPHA


@settings(deadline=None, max_examples=200)
@given(st.floats(1e-3, LARGEST_GRID), st.floats(1e-6, 1e6), st.integers(1, 1000))
def test_the_scale_covers_rows_moved_by_rounding(epsilon: float, bound: float, values: int) -> None:
    """In exact numbers: all steps that two rows may differ by, over t, are at most epsilon."""
    power, t = choose_integer_grid(epsilon, bound, values)
    step = Fraction(2) ** power
    assert (Fraction(bound) / step + values - 1) / t <= Fraction(epsilon)
    assert t * step <= (Fraction(bound) + (values + 1) * step) / Fraction(epsilon) + step


def test_an_answer_lies_on_the_grid() -> None:
    """Its low bits tell nothing of the row: any row gives whole steps."""
    power, _ = choose_integer_grid(4.0, 2.0, 10)
    steps = add_grid_noise(torch.rand(50, 10, dtype=torch.float64), 4.0, 2.0) / 2.0**power
    assert torch.equal(steps, steps.round())


def test_hardly_any_noise_leaves_the_rows() -> None:
    """Every value is disturbed at its own place."""
    rows = torch.randn(7, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    torch.testing.assert_close(add_grid_noise(rows, LARGEST_GRID, 1.0), rows, atol=1e-4, rtol=0)
    mechanism = LaplaceAnswers(mechanism="discrete-laplace", epsilon=1.0).build(3)
    assert mechanism.name == "discrete-laplace"
    assert len(mechanism.answer(rows.float()).unique()) == 21


@pytest.mark.parametrize("bad", [0.0, -1.0, math.inf, math.nan, 2 * LARGEST_GRID])
def test_impossible_numbers_are_refused(bad: float) -> None:
    """Epsilon and sensitivity are finite and above 0, rows are finite."""
    zeros = torch.zeros(1, 2)
    with pytest.raises(ValueError, match="epsilon is"):
        add_grid_noise(zeros, bad, 1.0)
    if not bad > 1:
        with pytest.raises(ValueError, match="sensitivity is"):
            add_grid_noise(zeros, 1.0, bad)
    with pytest.raises(ValueError, match="too far apart"):
        add_grid_noise(zeros, 1e-300, 1e300)
    with pytest.raises(ValueError, match="NaN or infinity"):
        add_grid_noise(torch.tensor([[0.0, math.nan]]), 1.0, 1.0)


def test_noise_drawn_ahead_has_the_same_law_and_is_used_once() -> None:
    """In groups of every size; no value comes twice in a row of any length."""
    noise = GridNoise()
    draws = np.concatenate([noise.draw(2, 1 + k % 7) for k in range(20_000)])
    assert misfit(np.clip(draws, -12, 12) + 12, chances(2)) > ALPHA
    wide = np.concatenate([noise.draw(2**40, 3) for _ in range(3_000)])
    assert len(np.unique(wide)) == len(wide)


def test_another_scale_and_another_process_draw_anew() -> None:
    """What is left of the old one is thrown away."""
    noise = GridNoise()
    noise.draw(2**40, 1)
    ahead = noise._ahead
    noise.draw(2**41, 1)
    assert not np.isin(noise._ahead, ahead).any()
    fork = multiprocessing.get_context("fork")
    queue = fork.SimpleQueue()
    child = fork.Process(target=lambda: queue.put(noise.draw(2**41, 50)), daemon=True)
    with noise._lock:  # another thread draws when it forks
        child.start()
    assert not np.isin(queue.get(), noise._ahead).any()
    child.join(20)


def test_a_copy_has_nothing_drawn_ahead() -> None:
    """By pickle or by copy: else a value would be used twice."""
    noise = GridNoise()
    noise.draw(2**40, 1)
    for other in (pickle.loads(pickle.dumps(noise)), copy.deepcopy(noise)):
        assert len(other._ahead) == 0
