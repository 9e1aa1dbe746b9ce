"""Information bottlenecks: the divergence, the bound, and how the Gaussians are learned."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.distributions import Normal, kl_divergence

from fedcel.errors import NetError, SettingsError
from fedcel.leakage import SmashedData, optimal_leak
from fedcel.losses import defences
from fedcel.losses.defences import gaussian_divergence
from fedcel.losses.protocol import State
from fedcel.nets import Cut, SplitNet
from tests.fedcel.losses.single import bind_rival

SIGMA = 0.4
CEB = bind_rival(defences.CEB(), classes=2, features=3, sigma=SIGMA)
VIB = bind_rival(defences.VIB(), classes=2, features=3, sigma=SIGMA)


def stream(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def make_batch(seed: int, count: int = 8) -> tuple[Tensor, Tensor, Tensor]:
    """Return features (count, 3), scales and labels of two classes that lie apart."""
    y = torch.arange(count) % 2
    z = 0.3 * torch.randn(count, 3, generator=stream(seed)) + y[:, None]
    return z, torch.rand(count, 3, generator=stream(seed + 1)) + 0.5, y


def draw_state(bottleneck: Any, seed: int = 5) -> State:
    state = bottleneck.refresh(None, stream())
    nn.init.normal_(state["theta"].data, std=0.5, generator=stream(seed))
    return state


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**32 - 1))
def test_the_divergence_is_torchs(seed: int) -> None:
    """Sum over features; 0 of a law and itself."""
    means = torch.randn(2, 5, 3, generator=stream(seed), dtype=torch.float64)
    deviations = torch.rand(2, 5, 3, generator=stream(seed + 1), dtype=torch.float64) + 0.05
    expected = kl_divergence(Normal(means[0], deviations[0]), Normal(means[1], deviations[1]))
    actual = gaussian_divergence(means[0], deviations[0], means[1], deviations[1])
    torch.testing.assert_close(actual, expected.sum(1))
    own = gaussian_divergence(means[0], deviations[0], means[0], deviations[0])
    torch.testing.assert_close(own, torch.zeros(5, dtype=torch.float64))


def test_each_image_is_held_to_its_own_class() -> None:
    """The mean of torch's divergences, row by row; of vib the same Gaussian for all."""
    z, scale, y = make_batch(1)
    for bottleneck, rows in ((CEB, y), (VIB, torch.zeros_like(y))):
        state = draw_state(bottleneck)
        means, logs = state["theta"].detach().view(2, bottleneck.groups, 3)
        theirs = kl_divergence(Normal(z, SIGMA * scale), Normal(means[rows], logs[rows].exp()))
        term = bottleneck.law_loss(state, z, scale, y=y)
        torch.testing.assert_close(term.loss, theirs.sum(1).mean())
        torch.testing.assert_close(term.metrics["information-bound"], theirs.sum(1).mean())
        torch.testing.assert_close(term.metrics["noise-scale"], scale.log().mean().exp())
        assert bottleneck.law_loss(state, z, scale, y=y, measure=False).metrics == {}


@pytest.mark.parametrize("bottleneck", [CEB, VIB], ids=["ceb", "vib"])
def test_the_gradient(bottleneck: Any) -> None:
    """Of features, scales and Gaussians, by finite differences."""
    z, scale, y = make_batch(2, 4)
    state = draw_state(bottleneck)
    parts = [z.double(), scale.double(), *(t.detach().double() for t in state.values())][:3]

    def loss(z: Tensor, scale: Tensor, theta: Tensor) -> Tensor:
        held = {**state, "theta": theta}
        return bottleneck.law_loss(held, z, scale, y=y).loss

    assert torch.autograd.gradcheck(loss, [part.requires_grad_() for part in parts])


def test_it_bounds_what_the_best_attacker_learns() -> None:
    """Whatever the Gaussians: of vib all information, of ceb that beyond the label."""
    count = 40
    z, scale, y = make_batch(3, count)

    class Table(nn.Module):
        def forward(self, z: Tensor) -> Tensor:
            return scale[(z[:, None] - features).abs().sum(2).argmin(1)]

    features = z
    net = SplitNet(nn.Flatten(), nn.Identity(), Cut(SIGMA), 3, noise_scale=Table())
    leak = optimal_leak(SmashedData(net), z[:, None, None], y, stream(), draws=200)
    for seed in range(4):
        vib, ceb = (
            float(one.law_loss(draw_state(one, seed), z, scale, y=y).loss.detach()) / math.log(2)
            for one in (VIB, CEB)
        )
        assert leak.information_bits <= vib
        assert leak.bits_beyond_label <= ceb
    assert leak.bits_beyond_label > 0.3


def test_the_gaussians_become_those_of_the_messages() -> None:
    """The minimum has each class's mean, and the variance of its features plus the noise's."""
    z, scale, y = make_batch(4, 40)
    state = CEB.refresh(None, stream())
    for _ in range(600):
        torch.autograd.backward(CEB.law_loss(state, z, scale, y=y, measure=False).loss)
        state = CEB.update(state)
    means, logs = state["theta"].detach().view(2, 2, 3)
    for label in (0, 1):
        members, noise = z[y == label], SIGMA * scale[y == label]
        variance = members.var(0, unbiased=False) + noise.square().mean(0)
        torch.testing.assert_close(means[label], members.mean(0), rtol=0, atol=0.01)
        torch.testing.assert_close(logs[label].exp(), variance.sqrt(), rtol=0.02, atol=0)


def test_what_is_learned_goes_on_where_it_stopped() -> None:
    """As arrays are read again; of another size it is refused."""
    state = draw_state(CEB)
    stored = {name: tensor.detach().clone() for name, tensor in state.items()}
    again = CEB.refresh(stored, stream())
    assert torch.equal(again["theta"], state["theta"])
    assert again["theta"].requires_grad
    with pytest.raises(SettingsError, match="stored information bottleneck has 12 weights"):
        bind_rival(defences.CEB(), features=3, sigma=SIGMA).refresh(stored, stream())


def test_other_features_than_the_settings_say() -> None:
    """A net of one's own makes what it likes."""
    z, scale, y = make_batch(7)
    with pytest.raises(NetError, match=r"makes 2 features, the bottleneck is of 3; set net\.feat"):
        CEB.law_loss(CEB.refresh(None, stream()), z[:, :2], scale[:, :2], y=y)
