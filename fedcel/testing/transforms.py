"""What every defence that changes features must hold."""

from collections.abc import Callable

import pytest
import torch
from jaxtyping import Float
from torch import Tensor
from torch.func import vmap

from fedcel.losses.defences import (
    TRANSFORM_CHECKS,
    Transform,
    TransformCase,
    append_transform,
)
from fedcel.nets import Cut, build_net
from fedcel.seeding import make_twice
from fedcel.settings import NetSettings
from fedcel.testing.check_names import name_check

SHAPE, FEATURES = (1, 4, 4), 12


def make_bounded_features(seed: int, count: int = 10) -> Float[Tensor, "B D"]:
    """Return features in [0, 1], as a sigmoid makes them; the first are 0, 1 and .5."""
    z = torch.rand(count, FEATURES, generator=torch.Generator().manual_seed(seed))
    z[0], z[1], z[2] = 0.0, 1.0, 0.5
    return z


class TransformContract:
    """Tests that a defence which changes features must pass; see `Transform`.

    Name your subclass `TestMine`, define `build`; pytest runs the rest.
    """

    def build(self) -> Transform:
        """Make your transform.

        Returns:
            A transform of 12 features.
        """
        raise NotImplementedError

    @pytest.mark.parametrize("check", TRANSFORM_CHECKS, ids=name_check)
    def test_it_passes_what_every_run_checks(self, check: Callable[[TransformCase], None]) -> None:
        """The short form of the contract, to which every run holds a transform of your own."""
        check(TransformCase(self.build(), make_bounded_features(1)[3:]))

    def test_a_net_can_end_in_it(self) -> None:
        """With as many parameters as without it."""
        stream = torch.Generator().manual_seed(1)
        plain = build_net(NetSettings(features=FEATURES, width=9), SHAPE, 3, stream, cut=Cut(0.1))
        net = append_transform(self.build(), plain, SHAPE, "mine")
        x = torch.rand(5, *SHAPE, generator=stream)
        assert torch.equal(net.encode(x), self.build().transform(plain.encode(x)))
        assert len([*net.parameters()]) == len([*plain.parameters()])

    def test_it_changes_something(self) -> None:
        """The features are others than before."""
        z = make_bounded_features(2)
        assert not torch.equal(self.build().transform(z), z)

    def test_it_draws_nothing_at_random(self) -> None:
        """The same bits twice: the law of what is sent is that of the cut, which attackers know."""
        assert torch.equal(*make_twice(lambda: self.build().transform(make_bounded_features(3))))

    def test_it_sees_one_image_at_a_time(self) -> None:
        """Alone or mapped over a batch, as attacks on uploads do, features become the same."""
        transform, z = self.build().transform, make_bounded_features(4)
        changed = transform(z)
        row_by_row = torch.cat([transform(row) for row in torch.split(z, 1)])
        torch.testing.assert_close(row_by_row, changed)
        torch.testing.assert_close(vmap(lambda row: transform(row[None])[0])(z), changed)

    def test_bounded_features_stay_bounded(self) -> None:
        """|z|^2 is at most D before, so it is after: features that grew would outgrow the noise."""
        squared = self.build().transform(make_bounded_features(5)).square().sum(1)
        assert (squared <= FEATURES * (1 + 1e-5)).all()

    def test_it_lets_a_gradient_through(self) -> None:
        """A finite one for each image that is not 0, or the encoder could not learn behind it."""
        z = make_bounded_features(6)[3:].requires_grad_()
        changed = self.build().transform(z)
        weights = torch.randn(changed.shape, generator=torch.Generator().manual_seed(7))
        (gradient,) = torch.autograd.grad((changed * weights).sum(), z)
        assert gradient.isfinite().all()
        assert gradient.any(1).all()
