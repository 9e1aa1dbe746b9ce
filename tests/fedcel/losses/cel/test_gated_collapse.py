"""The collapse of a learned weighting, and what holds it up: floor and entropy."""

import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedcel.errors import SettingsError
from fedcel.losses.cel.gated import attention_scores
from fedcel.losses.cel.plain import Plain
from fedcel.losses.cel.spread_penalties import linear_penalty
from fedcel.losses.protocol import split_features
from fedcel.settings import Attention
from tests.fedcel.losses.cel.gates import MODES, example, gated, slopes


def climb(attention: Attention, entropy: float = 0.0) -> dict[str, Tensor]:
    """Return the metrics after 50 steps of the attention on fixed features, 16 a class."""
    generator = torch.Generator().manual_seed(2)
    z = torch.rand(48, 64, generator=generator)
    y = torch.arange(48) % 3
    mine = gated(attention, hidden=0, features=64, entropy=entropy)
    state = mine.refresh(None, split_features(z, y), generator)
    for _ in range(50):
        torch.autograd.backward(mine.loss(state, z, y, measure=False).loss)
        state = mine.step(state, z, y)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # has a test of its own
        return mine.loss(state, z, y).metrics


def test_minimising_attention_collapses() -> None:
    """The trap: one member a class gets all the weight, the spread is gone, features untouched."""
    metrics = climb("minimise")
    assert 16 * metrics["attention-share"] < 1.1
    assert metrics["weighted-spread"] < 0.05 * metrics["plain-spread"]


def test_climbing_attention_does_not_collapse() -> None:
    """At its best it weighs the far members: no less than the plain spread, on many members."""
    metrics = climb("ascend")
    assert metrics["weighted-spread"] > metrics["plain-spread"]
    assert 16 * metrics["attention-share"] > 4


def test_the_floor_holds_the_spread() -> None:
    """Half of the weight shared evenly keeps half of the spread against any attention."""
    metrics = climb("floor")
    assert metrics["weighted-spread"] >= 0.5 * metrics["plain-spread"]
    assert 16 * metrics["attention-share"] > 3


@pytest.mark.parametrize("attention", ["minimise", "ascend"])
def test_entropy_bonus_keeps_the_members(attention: Attention) -> None:
    """A large bonus holds either attention near even weights."""
    assert climb(attention)["attention-share"] < 0.7
    assert climb(attention, entropy=30.0)["attention-share"] > 0.9


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**32 - 1), st.sampled_from(MODES), st.floats(0, 2))
def test_entropy_bonus_is_for_the_attention(
    seed: int, attention: Attention, entropy: float
) -> None:
    """Same value and features' gradient; theta's moves by -+entropy * d sum_c beta_c H_c."""
    if attention == "detach":
        return
    z, y, state = example(seed)
    z.requires_grad_()
    bare = gated(attention)
    mine = gated(attention, entropy=entropy)
    assert torch.equal(mine.loss(state, z, y).loss, bare.loss(state, z, y).loss)
    (at_z, at_theta), (bare_z, bare_theta) = (slopes(m, z, y, state) for m in (mine, bare))
    torch.testing.assert_close(at_z, bare_z)
    theta = state["theta"].detach().requires_grad_()
    a = attention_scores(theta, torch.nn.functional.layer_norm(z.detach(), (4,)), 5)
    total = z.new_zeros(())
    for c in range(3):
        alpha = a[y == c].softmax(0)
        alpha = 0.5 * alpha + 0.5 / 3 if attention == "floor" else alpha
        total = total - (alpha * alpha.log()).sum() / 3
    (rise,) = torch.autograd.grad(total, theta)
    # A descent on -entropy H in every mode: `ascend` has its whole gradient reversed.
    torch.testing.assert_close(at_theta, bare_theta - entropy * rise)


def test_no_bonus_for_an_attention_that_stays() -> None:
    """The message names setting, value and remedy."""
    with pytest.raises(SettingsError, match=r"cel\.entropy is 0\.1, must be 0.*'ascend'"):
        gated("detach", entropy=0.1)


@pytest.mark.parametrize("attention", ["minimise", "ascend", "detach"])
def test_collapse_warns_when_measured(attention: Attention) -> None:
    """Five members, one with all the weight: a share of .2."""
    z, y, state = example(8, count=15)
    state = {**state, "theta": (1e4 * state["theta"].detach()).requires_grad_()}
    with pytest.warns(UserWarning, match=rf"below 0\.[23] .*{attention}.*attention 'floor'"):
        gated(attention).loss(state, z, y)
    gated(attention).loss(state, z, y, measure=False)
    gated(attention).loss(state, z[:1], y[:1])  # no class to speak of: a share of 0, no warning


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**32 - 1), st.floats(0, 1), st.floats(0, 50))
def test_floor_bounds_the_spread(seed: int, floor: float, sharpness: float) -> None:
    """At least r * plain for any attention, however sharp; r = 1 is plain."""
    z, y, state = example(seed)
    state = {**state, "theta": state["theta"].detach() * sharpness}
    plain = Plain(linear_penalty, "batch-share", 3).loss({}, z, y).loss
    mine, even = gated("floor", floor=floor), gated("floor", floor=1.0)
    assert mine.loss(state, z, y, measure=False).loss >= floor * plain - 1e-12
    torch.testing.assert_close(even.loss(state, z, y).loss, plain)
