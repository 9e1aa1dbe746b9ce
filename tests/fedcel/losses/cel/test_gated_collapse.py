"""The collapse of a learned weighting, and what holds it up."""

import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedcel.losses.cel.plain import Plain
from tests.fedcel.losses.cel.gates import Attention, example, gated
from tests.fedcel.losses.single import single, split_features


def climb(attention: Attention) -> dict[str, Tensor]:
    """Return the metrics after 50 steps of the attention on fixed features, 16 a class."""
    generator = torch.Generator().manual_seed(2)
    z = torch.rand(48, 64, generator=generator)
    y = torch.arange(48) % 3
    mine = gated(attention, features=64)
    state = mine.refresh(None, split_features(z, y), generator)
    for _ in range(50):
        torch.autograd.backward(mine.loss(state, z, y, measure=False).loss)
        state = mine.update(state)
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
@given(st.integers(0, 2**32 - 1), st.floats(0, 50))
def test_floor_bounds_the_spread(seed: int, sharpness: float) -> None:
    """At least half of the plain one for any attention, however sharp."""
    z, y, state = example(seed)
    state = {**state, "theta": state["theta"].detach() * sharpness}
    plain = single(Plain(penalty="linear"), 3).loss({}, z, y).loss
    assert gated("floor").loss(state, z, y, measure=False).loss >= 0.5 * plain - 1e-12
