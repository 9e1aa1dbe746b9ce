"""The clip: no two rows are further apart than the sensitivity, whatever the logits."""

from math import dist, fsum, inf, nan

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq

from fedcel.privacy import clip_sensitivity
from fedcel.privacy.clip import clip_rows, project_l1, project_simplex

KINDS = ("clamp", "l1", "probabilities")

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
    """Exact L1 and L2 distances never exceed the sensitivities, however huge the logits."""
    a, b = clip_rows(torch.tensor(pair, dtype=torch.float64), kind, c).tolist()
    assert fsum(abs(x - y) for x, y in zip(a, b, strict=True)) <= clip_sensitivity(kind, c, len(a))
    assert dist(a, b) <= clip_sensitivity(kind, c, len(a), 2)


def test_clip_by_hand() -> None:
    """Centred (5, 1, -6): clamped at 4 (4, 1, -4); onto |.|_1 <= 4, threshold 3.5."""
    logits = torch.tensor([[6.0, 2.0, -5.0]])
    for kind, expected in (("clamp", [4.0, 1.0, -4.0]), ("l1", [1.5, 0.0, -2.5])):
        clipped = clip_rows(logits, kind, 4.0)
        torch.testing.assert_close(clipped, torch.tensor([expected], dtype=torch.float64))
    torch.testing.assert_close(clip_rows(logits, "probabilities", 4.0), logits.double().softmax(1))
    small = torch.tensor([[0.5, -0.25, -0.25]])
    for kind in ("clamp", "l1"):
        torch.testing.assert_close(clip_rows(small, kind, 4.0), small.double())


@given(st.lists(st.floats(-20, 20), min_size=2, max_size=8), st.floats(0.1, 10))
@settings(deadline=None)
def test_projection_against_root_finding(row: list[float], radius: float) -> None:
    """The projection is soft thresholding at the root of sum max(|u| - t, 0) = radius."""
    u = np.array(row)
    expected = u
    if np.abs(u).sum() > radius:

        def excess(t: float) -> float:
            return float(np.maximum(np.abs(u) - t, 0).sum() - radius)

        t = brentq(excess, 0, np.abs(u).max(), xtol=1e-14, rtol=1e-14)
        expected = np.sign(u) * np.maximum(np.abs(u) - t, 0)
    clipped = project_l1(torch.tensor([row], dtype=torch.float64), radius)
    np.testing.assert_allclose(clipped[0].numpy(), expected, atol=1e-9)


def test_projection_onto_the_simplex() -> None:
    """Points of the simplex stay; (.9, .5, -1) loses .2 and what is below 0."""
    points = torch.tensor([[0.2, 0.3, 0.5], [0.9, 0.5, -1.0]], dtype=torch.float64)
    expected = torch.tensor([[0.2, 0.3, 0.5], [0.7, 0.3, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(project_simplex(points, 1.0), expected)


@pytest.mark.parametrize("kind", KINDS)
def test_batches_are_rows(kind: str) -> None:
    """Shape kept; each row is clipped on its own."""
    logits = torch.randn(7, 5, generator=torch.Generator().manual_seed(0)) * 9
    batch = clip_rows(logits, kind, 2.0)
    assert batch.shape == (7, 5)
    torch.testing.assert_close(
        batch, torch.cat([clip_rows(row[None], kind, 2.0) for row in logits])
    )


@pytest.mark.parametrize("bad", [nan, inf, -inf])
@pytest.mark.parametrize("kind", KINDS)
def test_undefined_logits_are_refused(bad: float, kind: str) -> None:
    """NaN and infinity never reach the noise."""
    with pytest.raises(ValueError, match="NaN or infinity"):
        clip_rows(torch.tensor([[0.0, bad]]), kind, 4.0)


@pytest.mark.parametrize("bad", [0.0, -1.0, inf, nan])
def test_impossible_clips_are_refused(bad: float) -> None:
    """C is finite and above 0; kinds are the three."""
    with pytest.raises(ValueError, match="clip is"):
        clip_rows(torch.zeros(1, 2), "l1", bad)
    with pytest.raises(ValueError, match="must be 'clamp', 'l1' or 'probabilities'"):
        clip_rows(torch.zeros(1, 2), "l2", 4.0)


@pytest.mark.parametrize(
    ("kind", "l1", "l2"),
    [("clamp", 16.0, 8 * 2**0.5), ("l1", 8.0, 8.0), ("probabilities", 2.0, 2**0.5)],
)
def test_the_sensitivity_is_attained(kind: str, l1: float, l2: float) -> None:
    """2cC, 2c and 2 in L1; 2c sqrt(C), 2c and sqrt(2) in L2: c = 4, two or three classes."""
    assert clip_sensitivity(kind, 4.0, 2) == l1
    assert clip_sensitivity(kind, 4.0, 2, 2) == l2
    row, other_row = torch.eye(2) if kind != "l1" else torch.tensor([[1.0, 0, 0], [-1.0, 0, 0]])
    a, b = clip_rows(1e3 * torch.stack([row, other_row]), kind, 4.0)
    assert abs(float((a - b).abs().sum()) - l1) < 1e-2
    assert abs(float((a - b).norm()) - l2) < 1e-2
