"""Copies of a net for several clients: each row computes what the net would with its parameters."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from fedcel.errors import StackingError
from fedcel.nets import Cut, FlatNet, SplitNet, StackedNet

CLIENTS, IMAGES = 3, 5


class Scaled(nn.Linear):
    """A linear layer that is more than one."""

    def forward(self, x: Tensor) -> Tensor:
        """Return twice the map."""
        return 2 * super().forward(x)


def repeated() -> nn.Module:
    """One activation in two places."""
    bend = nn.Tanh()
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 6), bend, nn.Linear(6, 6), bend)


HALVES: dict[str, Callable[[], nn.Module]] = {
    "dense": lambda: nn.Sequential(nn.Flatten(), nn.Linear(16, 9), nn.ReLU(), nn.Linear(9, 6)),
    "no bias": lambda: nn.Sequential(nn.Flatten(), nn.Linear(16, 6, bias=False), nn.Sigmoid()),
    "subclass": lambda: nn.Sequential(nn.Flatten(), Scaled(16, 6)),
    "repeated": repeated,
    "rows": lambda: nn.Sequential(nn.Linear(4, 3), nn.GELU(), nn.Flatten(), nn.Linear(12, 6)),
    "convolution": lambda: nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 6)
    ),
}


@pytest.mark.parametrize("name", HALVES)
def test_each_row_computes_what_the_net_would(name: str) -> None:
    """Features, logits, potential and gradient; a second pass does not add to the first."""
    torch.manual_seed(0)
    flat = FlatNet(SplitNet(HALVES[name](), nn.Linear(6, 4), Cut(0.1), 6))
    stacked = StackedNet(flat, CLIENTS)
    vectors = torch.randn(CLIENTS, len(flat.vector)) / 3
    x, y = torch.rand(CLIENTS, IMAGES, 1, 4, 4), torch.randint(0, 4, (CLIENTS, IMAGES))
    stacked.vector.copy_(vectors)
    for _ in range(2):
        z = stacked.net.encode(x)
        potentials = stacked.net.potential(stacked.net.answer(z), y)
        stacked.backward(potentials)
    for k in range(CLIENTS):
        flat.load(vectors[k])
        own_z = flat.net.encode(x[k])
        potential = flat.net.potential(flat.net.answer(own_z), y[k])
        flat.backward(potential)
        torch.testing.assert_close(z[k], own_z)
        torch.testing.assert_close(potentials[k], potential)
        torch.testing.assert_close(stacked.gradient[k], flat.gradient)
        assert flat.gradient.abs().max() > 0


def test_a_head_alone_has_the_only_gradient() -> None:
    """Features that are given leave the encoder's gradient at 0, whatever it was before."""
    flat = FlatNet(SplitNet(HALVES["dense"](), nn.Linear(6, 4), Cut(0.1), 6))
    stacked = StackedNet(flat, CLIENTS)
    stacked.load(flat.vector)
    y = torch.randint(0, 4, (CLIENTS, IMAGES))
    encoded = stacked.net.encode(torch.rand(CLIENTS, IMAGES, 1, 4, 4))
    for z in (encoded, torch.rand(CLIENTS, IMAGES, 6)):
        stacked.backward(stacked.net.potential(stacked.net.answer(z), y))
    assert not stacked.gradient[:, : flat.cut].any()
    assert stacked.gradient[:, flat.cut :].any()


@pytest.mark.parametrize("is_within", [True, False], ids=["in a half", "of both halves"])
def test_layers_that_share_parameters_are_refused(is_within: bool) -> None:
    """Under a second name there is no row for them."""
    shared = nn.Linear(16, 16)
    layers = [shared, nn.ReLU(), shared] if is_within else [shared]
    head = nn.Linear(16, 4) if is_within else shared
    net = SplitNet(nn.Sequential(nn.Flatten(), *layers), head, Cut(0.1), 16)
    with pytest.raises(StackingError, match="share parameters"):
        StackedNet(FlatNet(net), CLIENTS)
