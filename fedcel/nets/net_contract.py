"""The short form of the contract of split networks, held before a run begins."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector

from fedcel.nets.split_net import SplitNet
from fedcel.plugins import require
from fedcel.seeding import make_twice

_IMAGES = 4


class NetCase(NamedTuple):
    """A split network to hold to its contract.

    Attributes:
        build: Builds the net with the parameters of a seed.
        shape: An image's, (C, H, W).
        classes: Number of logits.
    """

    build: Callable[[int], SplitNet]
    shape: tuple[int, ...]
    classes: int

    def make_images(self) -> Float[Tensor, "B C H W"]:
        """Return images of noise, a black and a white one first."""
        x = torch.rand(_IMAGES, *self.shape, generator=torch.Generator().manual_seed(2))
        x[0], x[1] = 0.0, 1.0
        return x


def _check_answers(case: NetCase) -> None:
    net, x = case.build(1), case.make_images()
    with torch.no_grad():
        z = net.encode(x)
        logits = net.answer(z)
    line = "features and logits must be finite, of black and white images too"
    require(bool(z.isfinite().all() and logits.isfinite().all()), line)
    require(z.shape == (_IMAGES, net.features), "the encoder must return (B, D) for any B")
    require(logits.shape == (_IMAGES, case.classes), "the head must return (B, classes) for any B")


def _check_repetition(case: NetCase) -> None:
    net, x = case.build(1), case.make_images()
    with torch.no_grad():
        z = net.encode(x)
        sent = z.clone()
        logits = net.answer(z)
        line = "the head must leave what it is given as it is; use inplace=False, or a copy"
        require(_is_same(z, sent), line)
        line = "encoder and head must draw nothing at random and remember nothing"
        is_same = _is_same(net.encode(x), z) and _is_same(net.answer(z), logits)
        require(is_same, f"{line}; a second time they gave other values")


def _is_same(first: Float[Tensor, "*shape"], second: Float[Tensor, "*shape"]) -> bool:
    """Tell whether tensors are equal, undefined values included."""
    return torch.equal(first.nan_to_num(), second.nan_to_num())


def _check_rows(case: NetCase) -> None:
    net, x = case.build(1), case.make_images()
    with torch.no_grad():
        z = net.encode(x)
        if not _is_same(net.encode(x), z):
            return  # at random, which another line refuses
        alone = torch.cat([net.encode(row) for row in torch.split(x, 1)])
        line = "the encoder must encode each image by itself; alone it gives other features"
        require(torch.allclose(alone, z, rtol=1e-3, atol=1e-5, equal_nan=True), line)
        logits, alone = net.answer(z.clone()), net.answer(z[:1].clone())
        line = "the head must answer each image by itself; alone it gives other logits"
        require(torch.allclose(alone, logits[:1], rtol=1e-3, atol=1e-5, equal_nan=True), line)


def _check_seed(case: NetCase) -> None:
    first, second = make_twice(lambda: parameters_to_vector(case.build(1).parameters()).detach())
    require(torch.equal(first, second), "the seed alone must decide the parameters; they differ")


def _check_gradients(case: NetCase) -> None:
    net = case.build(1)
    labels = torch.arange(_IMAGES) % case.classes
    loss = cross_entropy(net.answer(net.encode(case.make_images())), labels)
    parameters = {name: p for name, p in net.named_parameters() if p.requires_grad}
    require(bool(parameters), "a parameter must be trained; all have requires_grad=False")
    gradients = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
    for name, gradient in zip(parameters, gradients, strict=True):
        line = f"every parameter must have a finite gradient; that of {name!r} is"
        require(gradient is not None, f"{line} none: it has no part in the answer")
        require(bool(gradient.isfinite().all()), f"{line} not finite")


NET_CHECKS: tuple[Callable[[NetCase], None], ...] = (
    _check_answers,
    _check_repetition,
    _check_rows,
    _check_seed,
    _check_gradients,
)
"""Each raises ContractError where a line of the contract does not hold."""
