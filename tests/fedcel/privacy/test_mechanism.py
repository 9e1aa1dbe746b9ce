"""The mechanism: its sensitivity holds, its noise has the law it claims."""

from math import fsum, inf, nan

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.stats import kstest, laplace

from fedcel.privacy import clip, perturb, private_logits, sensitivity
from fedcel.privacy.mechanism import project_l1, project_simplex
from fedcel.settings_groups import Privacy

KINDS = ("clamp", "l1", "probabilities")
ALPHA = 1e-6  # chance that a sound sampler fails the test of its law
SAMPLES = 20_000

value = st.floats(-1e308, 1e308) | st.floats(-10, 10) | st.sampled_from([0.0, 4.0, 1e30, -1e30])
rows = st.integers(2, 12).flatmap(
    lambda n: st.tuples(*[st.lists(value, min_size=n, max_size=n)] * 2)
)


@settings(deadline=None, max_examples=300)
@given(rows, st.sampled_from(KINDS), st.floats(1e-3, 1e3))
@example(([1e30] * 3 + [0.0], [-1e30] * 3 + [0.0]), "l1", 4.0)
@example(([4.0, -4, -2, -800, -800, -800], [-800.0, -800, -800, 4, -4, -2]), "probabilities", 1.0)
@example(([1e6, 0.0], [0.0, 1e6]), "probabilities", 1.0)
@example(([9.0, -9.0], [-9.0, 9.0]), "clamp", 4.0)
def test_no_two_inputs_are_further_apart(
    pair: tuple[list[float], list[float]], kind: str, c: float
) -> None:
    """Exact sum of |difference| never exceeds Delta_1, however huge the logits."""
    a, b = clip(torch.tensor(pair, dtype=torch.float64), kind, c).tolist()
    assert fsum(abs(x - y) for x, y in zip(a, b, strict=True)) <= sensitivity(kind, c, len(a))


@pytest.mark.parametrize(("kind", "want"), [("clamp", 16.0), ("l1", 8.0), ("probabilities", 2.0)])
def test_the_sensitivity_is_attained(kind: str, want: float) -> None:
    """Opposite inputs reach 2cC, 2c and 2: c = 4, two classes."""
    a, b = clip(torch.tensor([[1e3, -1e3], [-1e3, 1e3]]), kind, 4.0)
    assert sensitivity(kind, 4.0, 2) == want
    assert abs(float((a - b).abs().sum()) - (8 * 2 if kind == "clamp" else want)) < 1e-9


def test_clip_by_hand() -> None:
    """Centred (5, 1, -6): clamped at 4 (4, 1, -4); onto |.|_1 <= 4, threshold 3.5."""
    logits = torch.tensor([[6.0, 2.0, -5.0]])
    for kind, want in (("clamp", [4.0, 1.0, -4.0]), ("l1", [1.5, 0.0, -2.5])):
        got = clip(logits, kind, 4.0)
        torch.testing.assert_close(got, torch.tensor([want], dtype=torch.float64))
    torch.testing.assert_close(clip(logits, "probabilities", 4.0), logits.double().softmax(1))
    small = torch.tensor([[0.5, -0.25, -0.25]])
    for kind in ("clamp", "l1"):
        torch.testing.assert_close(clip(small, kind, 4.0), small.double())


@given(st.lists(st.floats(-20, 20), min_size=2, max_size=8), st.floats(0.1, 10))
@settings(deadline=None)
def test_projection_against_root_finding(row: list[float], radius: float) -> None:
    """The projection is soft thresholding at the root of sum max(|u| - t, 0) = radius."""
    u = np.array(row)
    want = u
    if np.abs(u).sum() > radius:

        def excess(t: float) -> float:
            return float(np.maximum(np.abs(u) - t, 0).sum() - radius)

        t = brentq(excess, 0, np.abs(u).max(), xtol=1e-14, rtol=1e-14)
        want = np.sign(u) * np.maximum(np.abs(u) - t, 0)
    got = project_l1(torch.tensor([row], dtype=torch.float64), radius)
    np.testing.assert_allclose(got[0].numpy(), want, atol=1e-9)


def test_projection_onto_the_simplex() -> None:
    """Points of the simplex stay; (.9, .5, -1) loses .2 and what is below 0."""
    points = torch.tensor([[0.2, 0.3, 0.5], [0.9, 0.5, -1.0]], dtype=torch.float64)
    want = torch.tensor([[0.2, 0.3, 0.5], [0.7, 0.3, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(project_simplex(points, 1.0), want)


@settings(deadline=None)
@given(st.lists(st.floats(-50, 50), min_size=2, max_size=8), st.sampled_from(KINDS))
def test_the_order_of_classes_never_turns(row: list[float], kind: str) -> None:
    """A class that was below another is not above it after the clip."""
    (got,) = clip(torch.tensor([row], dtype=torch.float64), kind, 4.0)
    order = torch.tensor(row, dtype=torch.float64).argsort()
    assert (got[order].diff() >= -1e-12).all()


@pytest.mark.parametrize("kind", KINDS)
def test_batches_are_rows(kind: str) -> None:
    """Shape kept; each row is clipped on its own."""
    logits = torch.randn(7, 5, generator=torch.Generator().manual_seed(0)) * 9
    batch = clip(logits, kind, 2.0)
    assert batch.shape == (7, 5)
    torch.testing.assert_close(batch, torch.cat([clip(row[None], kind, 2.0) for row in logits]))
    noisy = perturb(batch, 1.0, 4.0)
    assert noisy.shape == (7, 5) and len(noisy.unique()) == 35
    assert perturb(batch[:0], 1.0, 4.0).shape == (0, 5)
    nearly = perturb(batch, 1e12, 4.0)  # the noise is gone: each value is at its own place
    torch.testing.assert_close(nearly, batch, atol=1e-9, rtol=0)


def noise(epsilon: float, delta: float) -> np.ndarray:
    """Return many draws of the noise alone."""
    return perturb(torch.zeros(SAMPLES // 10, 10), epsilon, delta).flatten().numpy()


@pytest.mark.parametrize(("epsilon", "delta"), [(0.5, 8.0), (4.0, 2.0), (1.0, 0.01)])
def test_noise_is_laplace_of_delta_over_epsilon(epsilon: float, delta: float) -> None:
    """Kolmogorov-Smirnov against Laplace(b); half and double the scale are told apart."""
    found = noise(epsilon, delta)
    assert kstest(found, laplace(scale=delta / epsilon).cdf).pvalue > ALPHA
    for wrong in (0.5, 2.0):
        assert kstest(found, laplace(scale=wrong * delta / epsilon).cdf).pvalue < ALPHA


def test_noise_values_are_independent() -> None:
    """No correlation between neighbours in a row, nor between rows."""
    found = noise(1.0, 1.0).reshape(-1, 10)
    for a, b in ((found[:, :-1], found[:, 1:]), (found[:-1], found[1:])):
        assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 5 / np.sqrt(a.size)


@settings(deadline=None, max_examples=100)
@given(st.floats(1e-3, 1e3), st.floats(1e-3, 1e4))
def test_opendp_confirms_every_epsilon(epsilon: float, delta: float) -> None:
    """The stated loss is at most epsilon for any pair of values, or `perturb` would raise."""
    assert perturb(torch.zeros(1, 2), epsilon, delta).isfinite().all()


@pytest.mark.parametrize("kind", KINDS)
def test_private_logits_use_the_settings(kind: str) -> None:
    """Scale Delta/epsilon of the settings or of the argument; `none` adds nothing."""
    logits = torch.zeros(600, 10)
    privacy = Privacy(clip_kind=kind, clip=3.0, epsilon=2.0)
    clipped = clip(logits, kind, 3.0)
    for epsilon in (2.0, 0.5):
        answer = private_logits(logits, privacy, None if epsilon == 2 else epsilon)
        assert answer.dtype == torch.float32 and answer.shape == logits.shape
        found = (answer - clipped).flatten().numpy()
        scale = sensitivity(kind, 3.0, 10) / epsilon
        assert kstest(found, laplace(scale=scale).cdf).pvalue > ALPHA
    off = privacy.model_copy(update={"mechanism": "none"})
    torch.testing.assert_close(private_logits(logits, off), clipped.float())


@pytest.mark.parametrize("bad", [nan, inf, -inf])
def test_undefined_logits_are_refused(bad: float) -> None:
    """NaN and infinity never reach the noise."""
    logits = torch.tensor([[0.0, bad]])
    for kind in KINDS:
        with pytest.raises(ValueError, match="NaN or infinity"):
            clip(logits, kind, 4.0)
    with pytest.raises(ValueError, match="NaN or infinity"):
        perturb(logits, 1.0, 1.0)


@pytest.mark.parametrize("bad", [0.0, -1.0, inf, nan])
def test_impossible_numbers_are_refused(bad: float) -> None:
    """Epsilon, sensitivity and c are finite and above 0; kinds are the three."""
    zeros = torch.zeros(1, 2)
    with pytest.raises(ValueError, match="epsilon is"):
        perturb(zeros, bad, 1.0)
    with pytest.raises(ValueError, match="sensitivity is"):
        perturb(zeros, 1.0, bad)
    with pytest.raises(ValueError, match="c is"):
        clip(zeros, "l1", bad)
    with pytest.raises(ValueError, match="must be one of clamp, l1, probabilities"):
        clip(zeros, "l2", 4.0)
    with pytest.raises(ValueError, match="too small"):
        perturb(zeros, 1e-308, 1e308)
