"""The reward of noise."""

import math

import torch

from fedcel.losses.defences import LearnedNoise
from tests.fedcel.losses.single import bind_rival


def test_by_hand() -> None:
    """Scales 1, 2 and 1/2, 4: minus the mean of log 2 and log 2; the geometric mean is sqrt 2."""
    scale = torch.tensor([[1.0, 2.0], [0.5, 4.0]], requires_grad=True)
    term = bind_rival(LearnedNoise()).law_loss(
        {}, torch.zeros(2, 2), scale, y=torch.zeros(2, dtype=torch.long)
    )
    torch.testing.assert_close(term.loss, torch.tensor(-math.log(2)))
    torch.testing.assert_close(term.metrics["noise-scale"], torch.tensor(2**0.5))
    (gradient,) = torch.autograd.grad(term.loss, scale)
    torch.testing.assert_close(gradient, -1 / (2 * scale.detach()))


def test_several_clients_at_once() -> None:
    """A loss each; nothing is kept, nothing measured that is not asked for."""
    scale = torch.rand(3, 4, 2, generator=torch.Generator().manual_seed(1)) + 0.1
    labels = torch.zeros(3, 4, dtype=torch.long)
    mine = bind_rival(LearnedNoise())
    together = mine.law_loss({}, torch.zeros(3, 4, 2), scale, y=labels, measure=False)
    alone = [
        mine.law_loss({}, torch.zeros(4, 2), row, y=labels[0], measure=False).loss for row in scale
    ]
    torch.testing.assert_close(together.loss, torch.stack(alone))
    assert together.metrics == {}
    assert mine.update(mine.refresh(None, torch.Generator())) == {}
