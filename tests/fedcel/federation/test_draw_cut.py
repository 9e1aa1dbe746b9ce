"""Mask and noise of the cut are drawn a few steps at a time, each client's by itself."""

from math import prod
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedcel.data import Images
from fedcel.federation import local_steps
from fedcel.federation.local_steps import draw_cut
from fedcel.losses import Streams
from fedcel.nets import Cut, FlatNet, Mlp, build_net
from fedcel.posterior import LocalSettings, RoundPlan
from fedcel.torch_state import make_generator
from tests.fedcel.train_one import train_one


def make_streams(clients: int) -> list[Streams]:
    return [lambda purpose, k=k: make_generator(k, purpose) for k in range(clients)]


@given(
    shape=st.tuples(st.integers(1, 70), st.integers(1, 5), st.integers(1, 17)),
    clients=st.integers(1, 3),
    at_once=st.integers(1, 300),
    sigma=st.sampled_from([0.0, 0.5]),
    dropout=st.sampled_from([0.0, 0.3]),
)
def test_each_client_draws_by_itself(
    shape: tuple[int, int, int], clients: int, at_once: int, sigma: float, dropout: float
) -> None:
    """Whatever other clients there are; masks do not depend on the noise, nor noise on masks."""
    cut, streams = Cut(sigma, dropout), make_streams(clients)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local_steps, "_DRAWN_AT_ONCE", at_once)
        together = list(draw_cut(cut, shape, streams))
        masks = [list(draw_cut(Cut(0.0, dropout), shape, [stream])) for stream in streams]
        noises = [list(draw_cut(Cut(sigma), shape, [stream])) for stream in streams]
    assert len(together) == shape[0]
    for step, (mask, noise) in enumerate(together):
        for k in range(clients):
            for both, alone in ((mask, masks[k][step][0]), (noise, noises[k][step][1])):
                assert (both is None) == (alone is None)
                assert both is None or alone is None or torch.equal(both[k], alone[0])


def test_draws_have_the_law_of_the_cut() -> None:
    """Chance, mean and standard deviation; steps and clients are independent."""
    steps = list(draw_cut(Cut(0.5, 0.3), (200, 16, 9), make_streams(2)))
    masks = torch.stack([mask for mask, _ in steps if mask is not None]).double()
    noises = torch.stack([noise for _, noise in steps if noise is not None]).double()
    assert abs(masks.mean() - 0.7) < 0.01
    assert abs(noises.mean()) < 0.01 and abs(noises.std() - 0.5) < 0.01
    rows = torch.cat([noises.flatten(2), masks.flatten(2)]).flatten(0, 1)
    assert torch.corrcoef(rows).fill_diagonal_(0).abs().max() < 0.4


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
    monkeypatch.setattr(local_steps, "_DRAWN_AT_ONCE", 2 * 6 * 8)
    assert torch.equal(train(), at_once)
    assert drawn == [2 * 6 * 8] * 20
