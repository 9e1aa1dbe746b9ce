"""Membership: the ratio's closed form, an overfitted model found out, chance where nothing is."""

from math import exp, log, sqrt

import pytest
import torch
from torch import Tensor

from membership_scores import (
    bound_epsilon,
    likelihood_ratios,
    measure_rates,
    scale_confidence,
    score_membership,
)

EVEN, NARROW = torch.float64, 0.5


def halves(shadows: int, images: int, stream: torch.Generator) -> Tensor:
    """Return which images each federation was trained on: a random half."""
    return torch.rand(shadows, images, generator=stream) < 0.5


def test_scaled_confidence_by_hand() -> None:
    """log(.7 / .3), and where exp(-1000) is 0."""
    logs = torch.tensor([[0.7, 0.2, 0.1]], dtype=EVEN).log()
    assert scale_confidence(logs, torch.tensor([0])).item() == pytest.approx(log(0.7 / 0.3))
    sure = torch.tensor([[0.0, -1000.0, -1000.0]], dtype=EVEN)
    assert scale_confidence(sure, torch.tensor([0])).item() == pytest.approx(1000 - log(2))


def test_the_ratio_is_that_of_two_gaussians() -> None:
    """Known means and one variance: (m1 - m0) / s^2 (x - (m1 + m0) / 2), for many shadows."""
    stream = torch.Generator().manual_seed(0)
    is_member = halves(4000, 3, stream)
    targets = torch.tensor([[0.3, 1.0, -2.0], [0.0, 2.0, 0.5]], dtype=EVEN)
    inside = torch.tensor([1.0, 2.0, -1.0], dtype=EVEN)
    noise = NARROW * torch.randn(4000, 3, generator=stream, dtype=EVEN)
    values = is_member * inside + noise
    scores = likelihood_ratios(targets[:, :, None], values[:, :, None], is_member)
    exact = inside / NARROW**2 * (targets - inside / 2)
    torch.testing.assert_close(scores, exact, atol=0.4, rtol=0.1)


def test_an_overfitted_model_is_found_out() -> None:
    """A shift of three deviations: AUC Phi(3 / sqrt 2), many found at a thousandth of alarms."""
    stream = torch.Generator().manual_seed(1)
    is_member = halves(64, 200, stream)
    difficulty = 5 * torch.randn(200, generator=stream)  # of images, which a threshold stumbles on
    values = difficulty + 3.0 * is_member + torch.randn(64, 200, generator=stream)
    scores = likelihood_ratios(values[32:, :, None], values[:32, :, None], is_member[:32])
    measured = score_membership(scores, is_member[32:], stream)
    expected = 0.5 * (1 + torch.erf(torch.tensor(3 / sqrt(2) / sqrt(2))).item())
    assert measured.auc.value == pytest.approx(expected, abs=0.02)
    assert measured.auc.low < measured.auc.value < measured.auc.high
    assert measured.tpr_1.value > 0.5 > 0.1 < measured.tpr_01.value
    assert measured.epsilon > 2
    threshold = score_membership(values[32:].double(), is_member[32:], stream)
    assert threshold.auc.value < measured.auc.value - 0.2


def test_a_model_that_never_saw_the_images_gives_chance() -> None:
    """The same statistics without a shift: AUC a half, rates of the alarms, no epsilon."""
    stream = torch.Generator().manual_seed(2)
    is_member = halves(64, 300, stream)
    values = torch.randn(64, 300, 2, generator=stream)
    scores = likelihood_ratios(values[32:], values[:32], is_member[:32])
    measured = score_membership(scores, is_member[32:], stream)
    assert measured.auc.low < 0.5 < measured.auc.high
    assert measured.tpr_1.value == pytest.approx(0.01, abs=0.006)
    assert measured.tpr_01.value == pytest.approx(0.001, abs=0.002)
    assert measured.epsilon < 0.1


def test_rates_by_hand() -> None:
    """Three members against four others, one tie."""
    scores = torch.tensor([[3.0, 1.0, 0.0, 2.0, 1.0, -1.0, -2.0]], dtype=EVEN)
    is_member = torch.tensor([[True, True, True, False, False, False, False]])
    auc, tpr_1, _ = measure_rates(scores, is_member)
    assert auc == pytest.approx((4 + 2.5 + 2) / 12)
    assert tpr_1 == pytest.approx(1 / 3)


def test_epsilon_of_randomised_response() -> None:
    """Told with chance e / (1 + e): the bound is just below 1, and never above."""
    stream = torch.Generator().manual_seed(3)
    is_member = halves(40, 1000, stream)
    is_true = torch.rand(40, 1000, generator=stream) < exp(1) / (1 + exp(1))
    told = torch.where(is_true, is_member, ~is_member).double()
    assert 0.9 < bound_epsilon(told, is_member) < 1
    assert bound_epsilon(torch.zeros_like(told), is_member) == 0


def test_refuses_nonsense() -> None:
    """An image without shadows, and a training that diverged."""
    everywhere = torch.ones(8, 3, dtype=torch.bool)
    with pytest.raises(ValueError, match="an image has 0 shadows"):
        likelihood_ratios(torch.zeros(2, 3, 1), torch.zeros(8, 3, 1), everywhere)
    with pytest.raises(ValueError, match="a training diverged"):
        likelihood_ratios(torch.full((2, 3, 1), torch.nan), torch.zeros(8, 3, 1), everywhere)
