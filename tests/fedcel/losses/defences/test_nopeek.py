"""Distance correlation: closed forms, invariances, a direct sum, its gradient."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedcel.losses.defences.nopeek import NoPeek, distance_correlation
from tests.fedcel.losses.single import bind_rival


def points(seed: int, count: int = 9, features: int = 3) -> Tensor:
    """Return normal points in float64."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, features, generator=generator, dtype=torch.float64)


def rotation(seed: int, features: int = 3) -> Tensor:
    q: Tensor = torch.linalg.qr(points(seed, features, features))[0]
    return q


def double_sum(x: Tensor, z: Tensor) -> float:
    """Return the statistic by its definition, one pair at a time."""
    n = len(x)

    def terms(points: Tensor) -> list[list[float]]:
        d = [[math.dist(a, b) for b in points.tolist()] for a in points.tolist()]
        row = [sum(line) / n for line in d]
        mean = sum(row) / n
        return [[d[i][j] - row[i] - row[j] + mean for j in range(n)] for i in range(n)]

    def covariance(a: list[list[float]], b: list[list[float]]) -> float:
        return sum(a[i][j] * b[i][j] for i in range(n) for j in range(n)) / n**2

    a, b = terms(x), terms(z)
    return math.sqrt(covariance(a, b) / math.sqrt(covariance(a, a) * covariance(b, b)))


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 2**32 - 1), st.integers(2, 12))
def test_by_definition(seed: int, count: int) -> None:
    """Equal to the double sum, and between 0 and 1."""
    x, z = points(seed, count), points(seed + 1, count, 2)
    correlation = distance_correlation(x, z).item()
    assert correlation == pytest.approx(double_sum(x, z), abs=1e-9)
    assert 0 <= correlation <= 1 + 1e-12


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 2**32 - 1), st.floats(1e-3, 1e3), st.floats(-9, 9))
def test_a_scaled_rotation_has_1(seed: int, scale: float, shift: float) -> None:
    """All distances are in proportion."""
    x = points(seed)
    correlation = distance_correlation(x, scale * x @ rotation(seed + 1) + shift)
    assert correlation.item() == pytest.approx(1.0, abs=1e-9)


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 2**32 - 1), st.floats(1e-3, 1e3), st.floats(-9, 9))
def test_shift_rotation_and_scale_change_nothing(seed: int, scale: float, shift: float) -> None:
    """Of either side."""
    x, z = points(seed), points(seed + 1)
    want, turned = distance_correlation(x, z), scale * z @ rotation(seed + 2) + shift
    torch.testing.assert_close(distance_correlation(x, turned), want, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(distance_correlation(turned, x), want, rtol=1e-9, atol=1e-9)


def test_two_points_on_a_line_are_always_dependent() -> None:
    """With two examples there is one distance."""
    assert distance_correlation(points(1, 2), points(2, 2)).item() == pytest.approx(1.0)


def test_independence_and_its_bias() -> None:
    """1500 independent pairs: below .06; 16 of 200 values each: above .9, as documented."""
    assert distance_correlation(points(1, 1500, 1), points(2, 1500, 1)) < 0.06
    assert distance_correlation(points(3, 16, 200), points(4, 16, 200)) > 0.9


def test_it_sees_what_correlation_does_not() -> None:
    """The square of x is uncorrelated with x and yet depends on it: about .5."""
    x = points(5, 400, 1)
    assert distance_correlation(x, x.square()) > 0.4


def test_gradient() -> None:
    """By finite differences, in float64."""
    x, z = points(6), points(7).requires_grad_()
    assert torch.autograd.gradcheck(lambda features: distance_correlation(x, features), z)


def test_equal_rows_have_a_finite_gradient() -> None:
    """A distance of 0 has no slope; other pairs keep theirs."""
    z = points(8).float()
    z = z[[0, 0, 0, 3, 4, 5, 6, 7, 8]].requires_grad_()
    torch.autograd.backward(distance_correlation(points(9).float(), z))
    assert z.grad is not None
    assert z.grad.isfinite().all()
    assert z.grad.any(1).all()


@pytest.mark.parametrize("scale", [0.0, 1e-25, 1e-15])
def test_a_spread_that_vanishes(scale: float) -> None:
    """0 without spread and where float32 cannot square it; above that, what it is."""
    x, z = points(10).float(), (points(11) * scale).float().requires_grad_()
    correlation = distance_correlation(x, z)
    (slope,) = torch.autograd.grad(correlation, z)
    assert slope.isfinite().all()
    if scale < 1e-20:
        assert correlation == 0
        assert not slope.any()
    else:
        assert correlation.item() == pytest.approx(double_sum(points(10), points(11)), rel=1e-4)


def test_what_is_undefined_stays_so() -> None:
    """NaN in, NaN out: a diverged net does not look independent."""
    x, z = points(12), points(13)
    z[0] = torch.nan
    assert distance_correlation(x, z).isnan()


def test_metric_is_the_loss() -> None:
    """Of the whole image, whatever its shape, and of z, not of the message."""
    x, z = torch.rand(9, 2, 3, 2, generator=torch.Generator().manual_seed(1)), points(14).float()
    term = bind_rival(NoPeek()).loss({}, x, z, torch.zeros_like(z))
    assert torch.equal(term.loss, distance_correlation(x.flatten(1), z))
    assert torch.equal(term.metrics["distance-correlation"], term.loss)
