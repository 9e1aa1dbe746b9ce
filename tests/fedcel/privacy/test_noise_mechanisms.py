"""The noise has the law it claims, and what it claims is what an attacker measures at most."""

from dataclasses import replace
from fractions import Fraction
from math import inf, ldexp, nan

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import kstest, laplace, norm

from fedcel.privacy import (
    Gaussian,
    Laplace,
    Mechanism,
    clip_sensitivity,
    perturb_rows,
)
from fedcel.privacy.clip import ClipKind
from fedcel.privacy.discrete_laplace import add_grid_noise
from fedcel.privacy.gaussian_calibration import calibrate_sigma
from fedcel.privacy.noise_mechanisms import choose_grid
from fedcel.testing import check_mechanism

KINDS = ("clamp", "l1", "probabilities")
ALPHA = 1e-6  # chance that a sound sampler fails the test of its law
SAMPLES = 20_000


def laplace_of(epsilon: float, kind: str = "l1", c: float = 2.0) -> Laplace:
    """Return the mechanism for 3 classes."""
    return Laplace(epsilon, 3, clip_kind=kind, clip=c)


def gaussian_of(epsilon: float, delta: float, kind: str = "l1", c: float = 2.0) -> Gaussian:
    """Return the mechanism for 3 classes."""
    return Gaussian(epsilon, 3, delta=delta, clip_kind=kind, clip=c)


@pytest.mark.parametrize(
    "mechanism",
    [
        laplace_of(1.0),
        replace(laplace_of(1.0), name="discrete-laplace", disturb=add_grid_noise),
        gaussian_of(1.0, 0.05),
    ],
    ids=lambda mechanism: mechanism.name,
)
def test_a_mechanism_holds_its_contract(mechanism: Mechanism) -> None:
    """OpenDP's noise, and the project's own sampler."""
    check_mechanism(lambda: mechanism)


def noise(epsilon: float, delta: float) -> np.ndarray:
    """Return many draws of the noise alone."""
    return perturb_rows(torch.zeros(SAMPLES // 10, 10), epsilon, delta).flatten().numpy()


@pytest.mark.parametrize(("epsilon", "delta"), [(0.5, 8.0), (4.0, 2.0), (1.0, 0.01)])
def test_noise_is_laplace_of_delta_over_epsilon(epsilon: float, delta: float) -> None:
    """Kolmogorov-Smirnov against Laplace(b); half and double the scale are told apart."""
    draws = noise(epsilon, delta)
    assert kstest(draws, laplace(scale=delta / epsilon).cdf).pvalue > ALPHA
    for wrong in (0.5, 2.0):
        assert kstest(draws, laplace(scale=wrong * delta / epsilon).cdf).pvalue < ALPHA


@pytest.mark.parametrize(("epsilon", "delta"), [(0.5, 1e-6), (4.0, 1e-3), (30.0, 0.5)])
def test_noise_is_gaussian_of_the_calibrated_sigma(epsilon: float, delta: float) -> None:
    """Kolmogorov-Smirnov against N(0, sigma); half and double are told apart."""
    mechanism = gaussian_of(epsilon, delta)
    sigma = calibrate_sigma(epsilon, delta, 4.0)
    assert mechanism.sigma == sigma
    draws = mechanism.answer(torch.zeros(SAMPLES // 3, 3)).flatten().numpy()
    assert kstest(draws, norm(scale=sigma).cdf).pvalue > ALPHA
    for wrong in (0.5, 2.0):
        assert kstest(draws, norm(scale=wrong * sigma).cdf).pvalue < ALPHA


def test_noise_values_are_independent() -> None:
    """No correlation between neighbours in a row, nor between rows."""
    draws = noise(1.0, 1.0).reshape(-1, 10)
    for a, b in ((draws[:, :-1], draws[:, 1:]), (draws[:-1], draws[1:])):
        assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 5 / np.sqrt(a.size)


@pytest.mark.parametrize("kind", KINDS)
def test_each_value_is_disturbed_at_its_own_place(kind: str) -> None:
    """Hardly any noise leaves the clipped rows; some noise makes all values differ."""
    logits = torch.randn(7, 3, generator=torch.Generator().manual_seed(0))
    for nearly, clipped in (
        (laplace_of(1e12, kind), laplace_of(1e15, kind).answer(logits)),
        (gaussian_of(1e12, 0.5, kind), laplace_of(1e15, kind).answer(logits)),
    ):
        torch.testing.assert_close(nearly.answer(logits), clipped, atol=1e-4, rtol=0)
        assert nearly.unit == ("probabilities" if kind == "probabilities" else "logits")
    assert len(laplace_of(1.0, kind).answer(logits).unique()) == 21


@settings(deadline=None, max_examples=100)
@given(st.floats(1e-3, 1e3), st.floats(1e-3, 1e4))
def test_opendp_confirms_every_epsilon(epsilon: float, delta: float) -> None:
    """The stated loss is at most epsilon for any pair of values, or `perturb_rows` would raise."""
    assert perturb_rows(torch.zeros(1, 2), epsilon, delta).isfinite().all()


@settings(deadline=None, max_examples=60)
@given(st.floats(1e-3, 1e3), st.floats(1e-9, 0.9), st.floats(1e-3, 1e4))
def test_opendp_confirms_every_sigma(epsilon: float, delta: float, bound: float) -> None:
    """The stated rho is at most that of the sensitivity and sigma, or `answer` would raise."""
    mechanism = Gaussian(epsilon, 3, delta=delta, clip_kind="l1", clip=bound / 2)
    assert mechanism.answer(torch.zeros(1, 3)).isfinite().all()


@pytest.mark.parametrize(("scale", "sensitivity"), [(1.0, 2.0), (5.0, 1e-9), (1e300, 1e-300)])
def test_opendps_step_is_fine_against_scale_and_sensitivity(
    scale: float, sensitivity: float
) -> None:
    """2^-79 of the smaller at most, and never below what a double can be."""
    exponent = choose_grid(scale, sensitivity)
    smaller = Fraction(min(scale, sensitivity))
    assert Fraction(2) ** exponent <= max(smaller / 2**79, Fraction(2) ** -1074)
    assert ldexp(1.0, exponent) > 0


@pytest.mark.parametrize("bad", [0.0, -1.0, inf, nan])
def test_impossible_numbers_are_refused(bad: float) -> None:
    """Epsilon and sensitivity are finite and above 0, rows are finite."""
    zeros = torch.zeros(1, 2)
    with pytest.raises(ValueError, match="epsilon is"):
        perturb_rows(zeros, bad, 1.0)
    with pytest.raises(ValueError, match="sensitivity is"):
        perturb_rows(zeros, 1.0, bad)
    with pytest.raises(ValueError, match="too small"):
        perturb_rows(zeros, 1e-308, 1e308)
    with pytest.raises(ValueError, match="NaN or infinity"):
        perturb_rows(torch.tensor([[0.0, nan]]), 1.0, 1.0)


@pytest.mark.parametrize("kind", KINDS)
def test_plain_numbers_make_a_mechanism(kind: ClipKind) -> None:
    """The sensitivity is the clip's, in the norm of the noise; arrays come back as arrays."""
    logits = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
    for mechanism, norm_of_noise in (
        (Laplace(epsilon=4, classes=3, clip_kind=kind), 1),
        (Gaussian(epsilon=4, classes=3, clip_kind=kind), 2),
    ):
        assert mechanism.sensitivity == clip_sensitivity(kind, 1.0, 3, norm_of_noise)
        answer = mechanism.answer(logits)
        assert isinstance(answer, np.ndarray) and answer.shape == (6, 3)
        assert isinstance(mechanism.answer(torch.from_numpy(logits)), torch.Tensor)
    with pytest.raises(ValueError, match="delta is 1.0, must be above 0 and below 1"):
        Gaussian(epsilon=1, classes=3, delta=1.0)
    with pytest.raises(ValueError, match="classes is 1, must be 2 or more"):
        Laplace(epsilon=4, classes=1)
