"""What every split network must hold."""

from copy import deepcopy

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedcel.nets import Cut, FlatNet, SplitNet, split_net
from fedcel.settings import NetSettings

CLASSES = 3
STEPS, RATE = 40, 3e-3  # of Adam, to see that the net learns at all
HUGE = 50.0  # times the first parameters


class NetContract:
    """Name your subclass `TestMine`, set `name` to your net's import string; pytest runs the rest.

    `shape` is an image's (C, H, W), `settings` what else the group `net` says. Set `bounded` to
    False for an encoder whose features may grow without limit: it may outgrow any noise.
    """

    name: str
    shape: tuple[int, int, int] = (1, 8, 8)
    bounded = True

    def settings(self) -> NetSettings:
        """Return the settings of the net."""
        return NetSettings(name=self.name, features=12, width=16)

    def build(self, seed: int = 1) -> SplitNet:
        """Return the net as a run would build it, without noise at the cut."""
        stream = torch.Generator().manual_seed(seed)
        return split_net.build_net(self.settings(), self.shape, CLASSES, stream, cut=Cut())

    def images(self, count: int = 6, seed: int = 2) -> Float[Tensor, "B C H W"]:
        """Return images of noise, a black and a white one first."""
        stream = torch.Generator().manual_seed(seed)
        x = torch.rand(count, *self.shape, generator=stream)
        x[0], x[1] = 0.0, 1.0
        return x

    def test_it_is_cut_in_two(self) -> None:
        """D features an image, one logit a class, all finite, black and white images included."""
        net = self.build()
        z = net.encode(self.images())
        assert z.shape == (6, net.features)
        assert net.answer(z).shape == (6, CLASSES)
        assert z.isfinite().all()
        assert net.answer(z).isfinite().all()

    def test_the_seed_decides_the_parameters(self) -> None:
        """Same seed, same bits; another seed, others; the global stream is not used or moved."""
        before = torch.random.get_rng_state()
        first, other = self.vector(1), self.vector(2)
        assert torch.equal(torch.random.get_rng_state(), before)
        torch.rand(5)
        assert torch.equal(self.vector(1), first)
        assert not torch.equal(other, first)

    def vector(self, seed: int) -> Float[Tensor, " P"]:
        """Return the parameters of a fresh net."""
        return FlatNet(self.build(seed)).vector.clone()

    def test_an_image_is_encoded_by_itself(self) -> None:
        """Alone, in a batch, a second time: no statistics of a batch, no chance, no memory."""
        net, x = self.build(), self.images()
        z = net.encode(x)
        torch.testing.assert_close(torch.cat([net.encode(row) for row in torch.split(x, 1)]), z)
        torch.testing.assert_close(net.answer(z[:1]), net.answer(z)[:1])
        assert torch.equal(net.encode(x), z)
        assert torch.equal(net.answer(z), net.answer(z))

    def test_every_parameter_learns(self) -> None:
        """Each has a finite gradient that is not 0; none belongs to encoder and head at once."""
        net = self.build()
        torch.autograd.backward(self.loss(net))
        for name, parameter in net.named_parameters():
            assert parameter.grad is not None, name
            assert parameter.grad.isfinite().all(), name
            assert parameter.grad.any(), name
        assert not set(net.encoder.parameters()) & set(net.head.parameters())

    def loss(self, net: SplitNet) -> Float[Tensor, ""]:
        """Return the cross-entropy of noise whose labels go round the classes."""
        x = self.images(12)
        return cross_entropy(net.answer(net.encode(x)), torch.arange(12) % CLASSES)

    def test_it_learns(self) -> None:
        """Forty steps of Adam bring the cross-entropy of twelve images well down."""
        net = self.build()
        adam, first = torch.optim.Adam(net.parameters(), RATE), self.loss(net).item()
        for _ in range(STEPS):
            adam.zero_grad()
            loss = self.loss(net)
            torch.autograd.backward(loss)
            adam.step()
        assert self.loss(net).item() < 0.9 * first

    def test_features_stay_bounded(self) -> None:
        """However large the parameters, |z|^2 is at most D: no encoder outgrows the noise."""
        net = self.build()
        with torch.no_grad():
            for parameter in net.parameters():
                parameter.mul_(HUGE)
            length = net.encode(self.images()).square().sum(1)
        assert not self.bounded or (length <= net.features * (1 + 1e-4)).all()

    def test_parameters_travel_as_one_vector(self) -> None:
        """Float32; loaded into another net they give the same answers; copies are independent."""
        one, two = FlatNet(self.build(1)), FlatNet(self.build(2))
        assert one.vector.dtype == torch.float32
        x, copy = self.images(), deepcopy(one.net)
        before = one.net.answer(one.net.encode(x))
        two.load(one.vector)
        assert torch.equal(two.net.answer(two.net.encode(x)), before)
        one.load(torch.zeros_like(one.vector))
        assert torch.equal(copy.answer(copy.encode(x)), before)
