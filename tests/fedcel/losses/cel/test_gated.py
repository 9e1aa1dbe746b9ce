"""The learned weighting: closed forms, the four modes, steps, refusals."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedcel.errors import DataError, SettingsError
from fedcel.losses.cel.conditional_entropy import (
    class_members,
    class_shares,
    log_penalty,
    weighted_means,
    weighted_spread,
)
from fedcel.losses.cel.gated import attention_scores, attention_weights
from fedcel.losses.cel.plain import Plain
from tests.fedcel.losses.cel.gates import MODES, Attention, example, gated, slopes
from tests.fedcel.losses.single import single, split_features


def by_hand(points: list[list[float]], y: Tensor, gate: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return alpha, means and spreads for V = I, U = gate I, w = 1 and no normalisation."""
    z, eye = torch.tensor(points).double(), torch.eye(2).double()
    group = class_members(y, int(y.max()) + 1, z)
    theta = torch.cat([eye.flatten(), gate * eye.flatten(), torch.ones(2).double()])
    alpha = attention_weights(attention_scores(theta, z), group)
    centre = weighted_means(z, alpha)
    return alpha, centre, weighted_spread(z, centre[y], alpha)


def close(value: Tensor, hand: list[float], atol: float) -> None:
    """Compare with printed digits."""
    torch.testing.assert_close(value, torch.tensor(hand).double(), rtol=0, atol=atol)


def test_worked_example_of_twelve_points() -> None:
    """V = U = I, w = 1, class 1 in the order of the printed weights."""
    points: list[list[float]] = [[0.2, 0.1], [0.15, -0.05], [0, 0], [-0.1, 0.05]]
    points += [[1, 1], [1.2, 1.1], [0.8, 0.9], [1.1, 0.95]]
    points += [[1, -1], [0.8, -0.9], [1.1, -1.2], [0.9, -1.05]]
    alpha, centre, v = by_hand(points, torch.arange(12) // 4, 1.0)
    close(alpha[:4, 0], [0.2790, 0.2511, 0.2375, 0.2324], 5e-5)
    close(centre[0], [0.07022, 0.02696], 5e-6)
    close(v, [0.017474, 0.026496, 0.024330], 5e-7)
    close(log_penalty(v, 0.002)[:1], [2.1671], 5e-5)


def test_worked_example_of_six_points() -> None:
    """V = I, U = I/2, w = 1, two classes; only the second is above tau .02."""
    points: list[list[float]] = [[0, 0], [0.2, 0.1], [-0.1, 0.05]]
    points += [[1, 1], [0.9, 1.1], [1.2, 0.8]]
    alpha, centre, v = by_hand(points, torch.arange(6) // 3, 0.5)
    close(alpha[:3, 0], [0.318038, 0.371247, 0.310714], 5e-7)
    close(centre[0], [0.04318, 0.05266], 5e-6)
    close(v, [0.017809, 0.031006], 5e-7)
    penalty = log_penalty(v, 0.02)
    close(penalty, [0, 0.43842], 5e-6)
    loss = class_shares(torch.tensor([3.0, 3.0]).double(), "batch-share") @ penalty
    assert abs(loss.item() - 0.21921) < 5e-6


def test_gradcheck() -> None:
    """Features see the true gradient, through the scores too; theta's is reversed in `ascend`."""
    z, y, state = example(0)
    z.requires_grad_()
    modes: list[Attention] = ["minimise", "floor"]
    for attention in modes:
        mine = gated(attention)
        assert torch.autograd.gradcheck(
            lambda z, theta, m=mine: m.loss({**state, "theta": theta}, z, y).loss,
            (z, state["theta"]),
            fast_mode=True,
        )
    mine = gated("ascend")
    assert torch.autograd.gradcheck(lambda z: mine.loss(state, z, y).loss, z)
    up = slopes(mine, z, y, state)
    down = slopes(gated("minimise"), z, y, state)
    torch.testing.assert_close(up[0], down[0])
    torch.testing.assert_close(up[1], -down[1])


def test_detach_is_the_gradient_of_fixed_weights() -> None:
    """With alpha frozen: 2 beta_c alpha_i (z_i - zbar); nothing reaches theta."""
    z, y, state = example(1)
    z.requires_grad_()
    mine, group = gated("detach"), class_members(y, 3, z)
    normal = torch.nn.functional.layer_norm(z, (4,))
    alpha = mine._weights(state["theta"], normal, group)
    loss = mine.loss(state, z, y).loss
    torch.testing.assert_close(loss, gated("minimise").loss(state, z, y).loss)
    torch.autograd.backward(loss)
    hand = 2 / 3 * alpha.sum(1, keepdim=True) * (z - weighted_means(z, alpha)[y])
    torch.testing.assert_close(z.grad, hand.detach())
    assert state["theta"].grad is None
    assert torch.equal(mine.update(state)["theta"], state["theta"])


def test_metrics_of_each_class() -> None:
    """Classes of 2 or more have their own numbers, whose means are logged; others have none."""
    z, y, state = example(7, count=6)
    y = torch.tensor([0, 0, 0, 2, 2, 1])
    mine = gated("minimise")
    metrics = mine.loss(state, z, y).metrics
    names = ("plain-spread", "weighted-spread", "attention-share")
    assert metrics.keys() == {"spread", *names, *(f"{n}-{c}" for n in names for c in (0, 2))}
    for name in names:
        torch.testing.assert_close(metrics[name], (metrics[f"{name}-0"] + metrics[f"{name}-2"]) / 2)
    alone = mine.loss(state, z[:3], y[:3]).metrics
    for name in names:
        torch.testing.assert_close(metrics[f"{name}-0"], alone[name])


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**32 - 1), st.sampled_from(MODES))
def test_even_attention_is_plain(seed: int, attention: Attention) -> None:
    """A theta of 0 weighs all members alike: the plain loss, and a share of 1."""
    z, y, state = example(seed, count=10)
    term = gated(attention).loss({**state, "theta": torch.zeros_like(state["theta"])}, z, y)
    plain = single(Plain(penalty="linear"), 3).loss({}, z, y)
    torch.testing.assert_close(term.loss, plain.loss)
    torch.testing.assert_close(term.metrics["spread"], plain.metrics["spread"])
    assert abs(term.metrics["attention-share"] - 1) < 1e-9


def test_single_members_take_no_share() -> None:
    """Two pairs and a lone image: the lone one changes nothing."""
    z, y, state = example(3, count=7)
    y = torch.tensor([0, 0, 0, 1, 1, 1, 2])
    alone = gated("minimise").loss(state, z, y)
    without = gated("minimise").loss(state, z[:6], y[:6])
    torch.testing.assert_close(alone.loss, without.loss)
    torch.testing.assert_close(alone.metrics, without.metrics)


@pytest.mark.parametrize(("features", "size"), [(8, 64), (400, 100), (4096, 256)])
def test_hidden_size(features: int, size: int) -> None:
    """A quarter of the features, from 64 to 256."""
    assert gated("ascend", features=features).hidden_size == size


@pytest.mark.parametrize("attention", MODES)
def test_nan_is_not_hidden(attention: Attention) -> None:
    """One NaN among the features, or a lone NaN of its class: the loss is NaN."""
    z, y, state = example(9)
    for labels in (y, torch.tensor([2, 0, 0, 0, 1, 1, 1, 0, 1])):
        bad = z.clone()
        bad[0, 1] = torch.nan
        mine = gated(attention)
        assert mine.loss(state, bad, labels).loss.isnan()


def test_another_size_is_refused() -> None:
    """A stored attention, or features, of another size; both sizes are named."""
    z, y, state = example(10)
    with pytest.raises(SettingsError, match="576 weights, must have 832: net.features changed"):
        gated("ascend", features=6).refresh(state, split_features(z, y), torch.Generator())
    with pytest.raises(SettingsError, match="4 features, the attention was made for 6"):
        gated("ascend", features=6).refresh(None, split_features(z, y), torch.Generator())
    with pytest.raises(DataError, match="0 examples"):
        gated("ascend").refresh(None, lambda: iter(()), torch.Generator())


@pytest.mark.parametrize("weight", [1.0, 1e-4])
def test_step_is_adam_and_blind_to_the_weight(weight: float) -> None:
    """Against torch's Adam on the unweighted gradient, three steps; the gradient is cleared."""
    z, y, state = example(4)
    oracle = state["theta"].detach().clone().requires_grad_()
    adam = torch.optim.Adam([oracle], lr=0.01, eps=1e-16)
    for _ in range(3):
        before = state["theta"]
        torch.autograd.backward(weight * gated("minimise").loss(state, z, y).loss)
        state = gated("minimise").update(state)
        adam.zero_grad()
        torch.autograd.backward(gated("minimise").loss({**state, "theta": oracle}, z, y).loss)
        adam.step()
        assert before.grad is None
        assert state["theta"].is_leaf
        assert state["theta"].requires_grad
        torch.testing.assert_close(state["theta"].detach(), oracle.detach(), rtol=1e-6, atol=1e-7)
