"""What every split network must hold."""

from collections.abc import Callable
from copy import deepcopy

import pytest
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedcel.nets import NET_CHECKS, Cut, FlatNet, NetCase, SplitNet, build_net
from fedcel.settings import NetSettings
from fedcel.testing.check_names import name_check

CLASSES = 3
STEPS, RATE = 40, 3e-3  # of Adam, to see that the net learns at all
LARGE_FACTOR = 50.0  # times the first parameters


class NetContract:
    """Tests that a split network must pass.

    Name your subclass `TestMine`, set `name`; pytest runs the rest.

    Attributes:
        name: Import string of your builder, as `net.name` would have it.
        shape: Of an image, (C, H, W).
        bounded: False for an encoder whose features may grow without limit: it may outgrow any
            noise.
    """

    name: str
    shape: tuple[int, int, int] = (1, 8, 8)
    bounded = True

    def settings(self) -> NetSettings:
        """Make the settings group `net`; override it for keys beyond the name.

        Returns:
            The settings of the net.
        """
        return NetSettings(name=self.name, features=12, width=16)

    def build(self, seed: int = 1) -> SplitNet:
        """Build the net as a run would, without noise at the cut.

        Args:
            seed: Of the parameters.

        Returns:
            The net for 3 classes.
        """
        stream = torch.Generator().manual_seed(seed)
        return build_net(self.settings(), self.shape, CLASSES, stream, cut=Cut())

    def make_images(self, count: int = 6) -> Float[Tensor, "B C H W"]:
        """Draw images of noise, a black and a white one first.

        Args:
            count: B, 2 or more.

        Returns:
            Images (B, C, H, W) in [0, 1].
        """
        x = torch.rand(count, *self.shape, generator=torch.Generator().manual_seed(2))
        x[0], x[1] = 0.0, 1.0
        return x

    @pytest.mark.parametrize("check", NET_CHECKS, ids=name_check)
    def test_it_passes_what_every_run_checks(self, check: Callable[[NetCase], None]) -> None:
        """The short form of the contract, to which every run holds a net of your own."""
        check(NetCase(self.build, self.shape, CLASSES))

    def test_another_seed_gives_other_parameters(self) -> None:
        """The seed decides them, so that runs of several seeds differ."""
        assert not torch.equal(FlatNet(self.build(2)).vector, FlatNet(self.build(1)).vector)

    def test_every_parameter_learns(self) -> None:
        """Each has a finite gradient that is not 0; none belongs to encoder and head at once."""
        net = self.build()
        torch.autograd.backward(self._loss(net))
        for name, parameter in net.named_parameters():
            assert parameter.grad is not None, name
            assert parameter.grad.isfinite().all(), name
            assert parameter.grad.any(), name
        assert not set(net.encoder.parameters()) & set(net.head.parameters())

    def _loss(self, net: SplitNet) -> Float[Tensor, ""]:
        """Return the cross-entropy of noise whose labels go round the classes."""
        x = self.make_images(12)
        return cross_entropy(net.answer(net.encode(x)), torch.arange(12) % CLASSES)

    def test_it_learns(self) -> None:
        """Forty steps of Adam bring the cross-entropy of twelve images well down."""
        net = self.build()
        adam, first = torch.optim.Adam(net.parameters(), RATE), self._loss(net).item()
        for _ in range(STEPS):
            adam.zero_grad()
            loss = self._loss(net)
            torch.autograd.backward(loss)
            adam.step()
        assert self._loss(net).item() < 0.9 * first

    def test_features_stay_bounded(self) -> None:
        """However large the parameters, |z|^2 is at most D: no encoder outgrows the noise."""
        net = self.build()
        with torch.no_grad():
            for parameter in net.parameters():
                parameter.mul_(LARGE_FACTOR)
            length = net.encode(self.make_images()).square().sum(1)
        assert not self.bounded or (length <= net.features * (1 + 1e-4)).all()

    def test_parameters_travel_as_one_vector(self) -> None:
        """Float32; loaded into another net they give the same answers; copies are independent."""
        first, second = FlatNet(self.build(1)), FlatNet(self.build(2))
        assert first.vector.dtype == torch.float32
        x, copy = self.make_images(), deepcopy(first.net)
        before = first.net.answer(first.net.encode(x))
        second.load(first.vector)
        assert torch.equal(second.net.answer(second.net.encode(x)), before)
        first.load(torch.zeros_like(first.vector))
        assert torch.equal(copy.answer(copy.encode(x)), before)
