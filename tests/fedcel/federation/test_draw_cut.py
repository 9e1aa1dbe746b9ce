"""Noise of the cut is drawn a few steps at a time, and is that of one draw for the round."""

from math import prod
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedcel.data import Images
from fedcel.federation import step_inputs
from fedcel.federation.step_inputs import draw_cut
from fedcel.nets import Cut, FlatNet, Mlp, build_net
from fedcel.posterior import LocalSettings, RoundPlan
from fedcel.seeding import make_generator
from tests.fedcel.train_one import train_one


def make_streams(clients: int) -> list[torch.Generator]:
    return [make_generator(k, "cut") for k in range(clients)]


@given(
    shape=st.tuples(st.integers(1, 70), st.integers(1, 5), st.integers(1, 17)),
    clients=st.integers(1, 3),
    at_once=st.integers(1, 300),
    sigma=st.sampled_from([0.0, 0.5]),
    dropout=st.sampled_from([0.0, 0.3]),
)
def test_equals_one_draw_to_the_bit(
    shape: tuple[int, int, int], clients: int, at_once: int, sigma: float, dropout: float
) -> None:
    """Masks of all steps first, then their noise, as torch draws them whole."""
    cut, streams = Cut(sigma, dropout), make_streams(clients)
    masks = [cut.draw_mask(shape, stream) for stream in streams]
    noises = [cut.draw_noise(shape, stream) for stream in streams]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(step_inputs, "_VALUES_AT_ONCE", at_once)
        steps = list(draw_cut(cut, shape, make_streams(clients)))
    assert len(steps) == shape[0]
    for whole, pieces in zip((masks, noises), zip(*steps, strict=True), strict=True):
        for k, expected in enumerate(whole):
            if expected is None:
                assert set(pieces) == {None}
            else:
                assert torch.equal(torch.stack([piece[k] for piece in pieces]), expected)


def test_memory_does_not_grow_with_the_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A round of 40 steps never draws more than two of them at once, with the same model."""
    images = Images(torch.rand(6, 1, 4, 4, generator=make_generator(1, "x")), torch.arange(6) % 3)
    drawn: list[int] = []
    draw_noise = Cut.draw_noise

    def record(cut: Cut, shape: tuple[int, ...], *given: Any) -> torch.Tensor | None:
        drawn.append(prod(shape))
        return draw_noise(cut, shape, *given)

    def train() -> torch.Tensor:
        net = build_net(Mlp(features=8, width=9, noise=0.1), (1, 4, 4), 3, make_generator(0, "net"))
        flat = FlatNet(net)
        return train_one(
            flat,
            flat.vector.clone(),
            images,
            plan=RoundPlan(0.3, 0.0, 0.0, 0.0, False, 0.0),
            local=LocalSettings(steps=40, batch_size=6),
            streams=lambda purpose: make_generator(3, purpose),
        ).model

    at_once = train()
    monkeypatch.setattr(Cut, "draw_noise", record)
    monkeypatch.setattr(step_inputs, "_VALUES_AT_ONCE", 2 * 6 * 8)
    assert torch.equal(train(), at_once)
    assert drawn == [2 * 6 * 8] * 20
