"""What every defence that changes smashed data must hold."""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.func import vmap

from fedcel.losses.defences import Transform, append_transform
from fedcel.nets import Cut, split_net
from fedcel.settings import NetSettings

SHAPE, FEATURES = (1, 4, 4), 12


def bounded_features(seed: int, count: int = 10) -> Float[Tensor, "B D"]:
    """Return codes in [0, 1], as encoders with a sigmoid send them; the first are 0, 1 and .5."""
    z = torch.rand(count, FEATURES, generator=torch.Generator().manual_seed(seed))
    z[0], z[1], z[2] = 0.0, 1.0, 0.5
    return z


class TransformContract:
    """Name your subclass `TestMine`, define `build`; pytest runs the rest."""

    def build(self) -> Transform:
        """Return your transform of 12 features."""
        raise NotImplementedError

    def test_it_is_taken_at_the_door(self) -> None:
        """A net whose encoder ends in it can be built, with as many parameters as without."""
        stream = torch.Generator().manual_seed(1)
        plain = split_net.build_net(
            NetSettings(features=FEATURES, width=9), SHAPE, 3, stream, cut=Cut(0.1)
        )
        net = append_transform(self.build(), plain, SHAPE, "mine")
        x = torch.rand(5, *SHAPE, generator=stream)
        assert torch.equal(net.encode(x), self.build().transform(plain.encode(x)))
        assert len([*net.parameters()]) == len([*plain.parameters()])

    def test_it_changes_something(self) -> None:
        """Shape, type and finiteness stay, the input is left alone, the codes are others."""
        z = bounded_features(2)
        before = z.clone()
        sent = self.build().transform(z)
        assert sent.shape == z.shape
        assert sent.dtype == z.dtype
        assert sent.isfinite().all()
        assert torch.equal(z, before)
        assert not torch.equal(sent, z)

    def test_nothing_is_drawn(self) -> None:
        """The same bits twice: the law of the message is that of the cut, which attackers know."""
        before = torch.random.get_rng_state()
        first = self.build().transform(bounded_features(3))
        assert torch.equal(torch.random.get_rng_state(), before)
        torch.rand(3)
        second = self.build().transform(bounded_features(3))
        torch.random.set_rng_state(before)
        assert torch.equal(first, second)

    def test_each_code_by_itself(self) -> None:
        """Alone or mapped over a batch, as attacks on uploads do, a code becomes the same."""
        mine, z = self.build(), bounded_features(4)
        whole = mine.transform(z)
        torch.testing.assert_close(
            torch.cat([mine.transform(row) for row in torch.split(z, 1)]), whole
        )
        mapped = vmap(lambda row: mine.transform(row[None])[0])(z)
        torch.testing.assert_close(mapped, whole)

    def test_bounded_codes_stay_bounded(self) -> None:
        """|z|^2 is at most D before, so it is after: a code that grew would outgrow the noise."""
        assert (
            self.build().transform(bounded_features(5)).square().sum(1) <= FEATURES * (1 + 1e-5)
        ).all()

    def test_a_gradient_comes_through(self) -> None:
        """Each code has a finite one that is not 0, or the encoder could not learn behind it."""
        z = bounded_features(6)[3:].requires_grad_()
        sent = self.build().transform(z)
        weights = torch.randn(sent.shape, generator=torch.Generator().manual_seed(7))
        (slope,) = torch.autograd.grad((sent * weights).sum(), z)
        assert slope.isfinite().all()
        assert slope.any(1).all()
