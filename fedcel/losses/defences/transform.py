"""A user's defence that changes what is sent: the last layer of the encoder, before the noise."""

from collections.abc import Callable
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import vmap

from fedcel import plugins
from fedcel.nets import BoundMethod, SplitNet
from fedcel.plugins import require
from fedcel.short_repr import show_shapes
from fedcel.torch_state import make_twice

TRIAL_IMAGES = 4
"""Random images on which a transform is tried."""


@runtime_checkable
class Transform(Protocol):
    """A change of features before the noise of the cut, such as fewer levels or fewer values."""

    def transform(self, z: Float[Tensor, "B D"]) -> Float[Tensor, "B D"]:
        """Change features: each row by itself, nothing drawn at random, with a gradient.

        Args:
            z: Features (B, D).

        Returns:
            What is sent in place of z (B, D), noise excluded. Where z is bounded by |z|^2 <= D, so
            must it be.
        """
        ...


@show_shapes
class TransformCase(NamedTuple):
    """A change of what is sent to hold to its contract.

    Attributes:
        transform: The change.
        z: Features (B, D) of at least two images.
    """

    transform: Transform
    z: Float[Tensor, "B D"]

    def change(self, z: Float[Tensor, "B D"]) -> Float[Tensor, "B D"]:
        """Return what is sent in place of features, after checking its shape and values."""
        changed = self.transform.transform(z)
        line = "`transform` must return as many finite values of the same type"
        is_tensor = isinstance(changed, Tensor)
        require(is_tensor, f"{line}; it returned {type(changed).__name__}")
        is_alike = changed.shape == z.shape and changed.dtype == z.dtype
        require(
            is_alike and bool(changed.isfinite().all()),
            f"{line}; it turned {tuple(z.shape)} of {z.dtype} into {tuple(changed.shape)} of "
            f"{changed.dtype}, {'finite' if changed.isfinite().all() else 'not finite'}",
        )
        return changed

    def pull_gradient(self) -> Float[Tensor, "B D"]:
        """Return the gradient at the features of a random weighting of what is sent."""
        z = self.z.detach().clone().requires_grad_()
        changed = self.change(z)
        weights = torch.randn(changed.shape, generator=torch.Generator().manual_seed(0))
        line = "`transform` must let a finite gradient through, or no encoder could learn; return "
        line += "z + (changed - z).detach()"
        require(changed.requires_grad, line)
        (gradient,) = torch.autograd.grad((changed * weights).sum(), z, allow_unused=True)
        passes = gradient is not None and bool(gradient.any() and gradient.isfinite().all())
        require(passes, line)
        return gradient


def _check_shape(case: TransformCase) -> None:
    z = case.z.detach().clone()
    case.change(z)
    require(torch.equal(z, case.z), "`transform` must leave the features it is given as they are")


def _check_rows(case: TransformCase) -> None:
    _require_rows(case, case.z.detach())


def _require_rows(case: TransformCase, z: Float[Tensor, "B D"]) -> None:
    row_by_row = torch.cat([case.change(row) for row in torch.split(z, 1)])
    require(
        torch.allclose(row_by_row, case.change(z), rtol=1.3e-6, atol=1e-5),
        "`transform` must see one image's features at a time and draw nothing: the cut adds the "
        "noise; features were not changed the same way again, or alone",
    )


def _check_repetition(case: TransformCase) -> None:
    first, again = make_twice(lambda: case.change(case.z.detach()))
    require(torch.equal(first, again), "`transform` must give the same to the bit each time")


def _check_way_back(case: TransformCase) -> None:
    case.pull_gradient()


def _check_every_image(case: TransformCase) -> None:
    passes = bool(case.pull_gradient().any(1).all())
    require(passes, "`transform` must let a gradient through to each image that is not 0")


def _add_flat_images(case: TransformCase) -> Float[Tensor, "B D"]:
    """Return the features after those of images whose values are all 0, all 1 or all 0.5."""
    flat = torch.tensor([0.0, 1.0, 0.5])[:, None].expand(3, case.z.shape[1])
    return torch.cat([flat, case.z.detach()])


def _check_mapping(case: TransformCase) -> None:
    z = _add_flat_images(case)
    _require_rows(case, z)
    mapped = vmap(lambda row: case.transform.transform(row[None])[0])(z)
    is_same = torch.allclose(mapped, case.change(z), rtol=1.3e-6, atol=1e-5)
    require(is_same, "`transform` must be the same under torch.func.vmap: attacks map it")


def _check_bound(case: TransformCase) -> None:
    z = _add_flat_images(case)
    is_bounded = bool((case.change(z).square().sum(1) <= z.shape[1] * (1 + 1e-5)).all())
    require(is_bounded, "|z|^2 is at most D before, so it must be after; it outgrows the noise")


def _check_change(case: TransformCase) -> None:
    z = _add_flat_images(case)
    require(not torch.equal(case.change(z), z), "`transform` must change something")
    transform = case.transform
    learns = isinstance(transform, nn.Module) and any(True for _ in transform.parameters())
    require(not learns, "`transform` must have no parameters: the encoder ends in it")


TransformCheck = Callable[[TransformCase], None]
TRANSFORM_CHECKS: tuple[TransformCheck, ...] = (
    _check_shape,
    _check_rows,
    _check_repetition,
    _check_way_back,
)
"""Before a run and in tests; each raises ContractError where a line of the contract breaks."""
TRANSFORM_TESTS: tuple[TransformCheck, ...] = (
    *TRANSFORM_CHECKS,
    _check_every_image,
    _check_mapping,
    _check_bound,
    _check_change,
)
"""All, in tests of features in [0, 1]."""


def append_transform(
    transform: Transform, net: SplitNet, shape: tuple[int, ...], name: str
) -> SplitNet:
    """End a net's encoder in a transform, after trying the transform.

    Whatever knows the encoder knows the transform: training, the service, every attack, Bayes'
    rule.

    Raises:
        PluginError: Features of random images come out with another shape, not finite, differently
            in another batch or a second time, or without a gradient.
    """
    stream = torch.Generator().manual_seed(0)
    z = net.encode(torch.rand(TRIAL_IMAGES, *shape, generator=stream)).detach()
    part = plugins.PartName("defence.name", name, "check_transform")
    plugins.check_contract(part, TRANSFORM_CHECKS, TransformCase(transform, z))
    net.encoder = nn.Sequential(net.encoder, BoundMethod(transform, "transform"))
    return net
