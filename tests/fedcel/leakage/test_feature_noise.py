"""Noise of each feature: closed forms, the conditions of the optimum, and refusals."""

from math import log, sqrt
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedcel.errors import NetError
from fedcel.leakage import calibrate_noise, measure_linearised
from fedcel.leakage.calibrate_noise import LeakTarget, compute_jacobians
from fedcel.leakage.feature_noise import differentiate_leak, measure_sensitivity, spread_noise
from tests.fedcel.leakage.test_calibrate_noise import IMAGES, PRIOR, eigen_net
from tests.fedcel.leakage.test_linearised import VALUES, bent_net, draw_images, linear_net


def test_independent_features_by_hand() -> None:
    """Each variance solves s (s + k) = m k, with m such that the bits are met."""
    strengths = [4.0, 2.0, 1.0, 0.5]
    found = calibrate_noise(
        eigen_net(strengths), IMAGES, prior=PRIOR, target_bits=2, per_feature=True
    )
    assert isinstance(found.noise, Tensor)
    k = torch.tensor(strengths).double()

    def variances(m: float) -> Tensor:
        return (-k + (k * k + 4 * m * k).sqrt()) / 2

    low, high = 1e-6, 1e6
    for _ in range(200):
        middle = sqrt(low * high)
        bits = float((1 + k / variances(middle)).log2().sum()) / 2
        low, high = (middle, high) if bits > 2 else (low, middle)
    torch.testing.assert_close(found.noise.square(), variances(high), rtol=1e-3, atol=0)
    assert found.leak.bits == pytest.approx(2, rel=1e-9)


@pytest.mark.parametrize("target", [LeakTarget(bits=3), LeakTarget(mse=0.8 * PRIOR.variance)])
@pytest.mark.parametrize("features", [6, 2 * VALUES])
def test_conditions_of_the_optimum(features: int, target: LeakTarget) -> None:
    """A unit of harm buys the same leak at each feature, but at the ends of its range."""
    net = bent_net(3, features)
    root = PRIOR.variances.sqrt()
    scaled = compute_jacobians(net, IMAGES[:30], PRIOR) * root
    harms = 1 + 3 * torch.rand(features, generator=torch.Generator().manual_seed(0)).double()
    limits: dict[str, Any] = {"target_bits": target.bits, "target_mse": target.mse}
    one = calibrate_noise(net, IMAGES[:30], prior=PRIOR, **limits).noise
    assert isinstance(one, float)
    is_error = target.bits is None
    allowed = (PRIOR.variance - (target.mse or 0)) * VALUES if is_error else 3 * log(2)
    noise = spread_noise(scaled, root, harms, one, allowed=allowed, is_error=is_error)
    leak = measure_linearised(net, IMAGES[:30], noise=noise, prior=PRIOR)
    if target.bits is not None:
        assert leak.bits == pytest.approx(target.bits, rel=1e-6)
    else:
        assert leak.mmse == pytest.approx(target.mse, rel=1e-6)
    variances = noise.square()
    assert float((harms * variances).sum()) < float(harms.sum()) * one**2
    parts = [differentiate_leak(part, 1 / variances, root, is_error)[1] for part in scaled]
    slopes = torch.stack(parts).mean(0)
    prices = slopes / variances.square() / harms
    inside = (noise > 0.1001 * one) & (noise < 9.99 * one)
    assert inside.sum() >= features / 2
    assert float(prices[inside].max() / prices[inside].min()) < 1.01


@pytest.mark.parametrize("is_error", [False, True])
@pytest.mark.parametrize("features", [5, 12])
def test_slopes_are_derivatives(is_error: bool, features: int) -> None:
    """By central differences of the value."""
    generator = torch.Generator().manual_seed(0)
    scaled = torch.randn(features, 8, generator=generator).double()
    root = torch.rand(8, generator=generator).double()
    precisions = 0.2 + torch.rand(features, generator=generator).double()
    value, slopes = differentiate_leak(scaled, precisions, root, is_error)
    gram = torch.eye(8).double() + scaled.T @ (precisions[:, None] * scaled)
    if not is_error:
        assert value == pytest.approx(float(gram.logdet()) / 2)
    else:
        left = torch.linalg.solve(gram, torch.diag(root)) * root[:, None]
        assert value == pytest.approx(float(root.square().sum() - left.trace()))
    for place in range(features):
        step = torch.zeros_like(precisions)
        step[place] = 1e-6
        ends = [
            differentiate_leak(scaled, precisions + sign * step, root, is_error)[0]
            for sign in (1, -1)
        ]
        assert float(slopes[place]) == pytest.approx((ends[0] - ends[1]) / 2e-6, rel=1e-5)


def test_a_head_decides_where_noise_does_harm() -> None:
    """A feature that the answer ignores gets all the noise that it may; bits are met."""
    net = linear_net(features=4)
    head = nn.Linear(4, 3).double()
    with torch.no_grad():
        head.weight.copy_(torch.tensor([[8.0, 0, 4, 0], [-8, 0, 0, 0], [0, 0, -4, 0]]))
    plain, told = (
        calibrate_noise(net, IMAGES, prior=PRIOR, target_bits=4, per_feature=True, head=part).noise
        for part in (None, head)
    )
    one = calibrate_noise(net, IMAGES, prior=PRIOR, target_bits=4).noise
    assert isinstance(plain, Tensor) and isinstance(told, Tensor) and isinstance(one, float)
    torch.testing.assert_close(told[[1, 3]], torch.full((2,), 10 * one).double())
    assert (told[[0, 2]] < plain[[0, 2]]).all()


def test_sensitivity_of_a_linear_head() -> None:
    """The diagonal of W^T (diag p - p p^T) W, mean over images."""
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(400, 5, generator=generator)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        head = nn.Linear(5, 4)
    with torch.no_grad():
        chances = head(features).softmax(1)
        weight = head.weight
    spread = torch.diag_embed(chances) - chances[:, :, None] * chances[:, None]
    truth = torch.einsum("ki,nkl,li->i", weight, spread, weight) / len(features)
    found = measure_sensitivity(head, features, shape=(5,))
    torch.testing.assert_close(found.float(), truth.detach(), rtol=0.1, atol=0)


class Pair(nn.Module):
    """Encoder of two outputs."""

    def forward(self, x: Tensor) -> list[Tensor]:
        """Return the halves of an image."""
        return list(x.flatten(1).chunk(2, 1))


def test_refusals() -> None:
    """A head without a use, too many values for Jacobians, an encoder of two outputs."""
    with pytest.raises(ValueError, match="leave it out"):
        calibrate_noise(linear_net(), IMAGES, target_bits=1, head=nn.Linear(6, 2))
    large = draw_images(12, shape=(1, 8, 8)).float().repeat(1, 1, 10, 10)
    with pytest.raises(ValueError, match="give one noise for all"):
        calibrate_noise(nn.Flatten(), large, target_bits=1, per_feature=True)
    with pytest.raises(NetError, match="no single tensor"):
        calibrate_noise(Pair(), IMAGES, target_bits=1, per_feature=True)
