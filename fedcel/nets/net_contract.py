"""Contract of split networks."""

from collections.abc import Callable
from copy import deepcopy
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector

from fedcel.nets.flat_net import FlatNet
from fedcel.nets.split_net import SplitNet
from fedcel.plugins import require
from fedcel.torch_state import make_twice

_IMAGES = 4
_ADAM_STEPS, _RATE = 40, 3e-3  # to see that the net learns at all
_LARGE_FACTOR = 50.0  # times the first parameters


class NetCase(NamedTuple):
    """A split network to hold to its contract.

    Attributes:
        build: Builds the net with the parameters of a seed.
        shape: An image's, (C, H, W).
        classes: Number of logits.
        bounded: Whether |z|^2 is at most D however large the parameters.
    """

    build: Callable[[int], SplitNet]
    shape: tuple[int, ...]
    classes: int
    bounded: bool = True

    def make_images(self, count: int = _IMAGES) -> Float[Tensor, "B C H W"]:
        """Return images of noise, a black and a white one first."""
        x = torch.rand(count, *self.shape, generator=torch.Generator().manual_seed(2))
        x[0], x[1] = 0.0, 1.0
        return x

    def measure_loss(self, net: SplitNet, count: int = _IMAGES) -> Float[Tensor, ""]:
        """Return the cross-entropy of images whose labels go round the classes."""
        logits = net.answer(net.encode(self.make_images(count)))
        return cross_entropy(logits, torch.arange(count) % self.classes)


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
    """Whether tensors are equal, undefined values included."""
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
    parameters = {name: p for name, p in net.named_parameters() if p.requires_grad}
    require(bool(parameters), "a parameter must be trained; all have requires_grad=False")
    gradients = torch.autograd.grad(
        case.measure_loss(net), list(parameters.values()), allow_unused=True
    )
    for name, gradient in zip(parameters, gradients, strict=True):
        line = f"every parameter must have a finite gradient; that of {name!r} is"
        require(gradient is not None, f"{line} none: it has no part in the answer")
        require(bool(gradient.isfinite().all()), f"{line} not finite")


def _check_other_seed(case: NetCase) -> None:
    first, second = (FlatNet(case.build(seed)).vector for seed in (1, 2))
    is_same = torch.equal(first, second)
    require(not is_same, "another seed must give other parameters, so that runs of several differ")


def _check_slopes(case: NetCase) -> None:
    net = case.build(1)
    torch.autograd.backward(case.measure_loss(net, 12))
    for name, parameter in net.named_parameters():
        gradient = parameter.grad
        learns = gradient is not None and bool(gradient.any() and gradient.isfinite().all())
        require(learns, f"every parameter must learn; the gradient of {name!r} is {gradient!r:.60}")
    is_shared = set(net.encoder.parameters()) & set(net.head.parameters())
    require(not is_shared, "no parameter may belong to encoder and head at once")


def _check_learning(case: NetCase) -> None:
    net = case.build(1)
    adam, first = torch.optim.Adam(net.parameters(), _RATE), case.measure_loss(net, 12).item()
    for _ in range(_ADAM_STEPS):
        adam.zero_grad()
        torch.autograd.backward(case.measure_loss(net, 12))
        adam.step()
    last = case.measure_loss(net, 12).item()
    line = f"{_ADAM_STEPS} steps of Adam must lower the cross-entropy by a tenth"
    require(last < 0.9 * first, f"{line}; {first:g} became {last:g}")


def _check_bound(case: NetCase) -> None:
    if case.bounded:
        net = case.build(1)
        with torch.no_grad():
            for parameter in net.parameters():
                parameter.mul_(_LARGE_FACTOR)
            length = net.encode(case.make_images(6)).square().sum(1).max().item()
        line = "|z|^2 must be at most D however large the parameters, or no noise is enough"
        is_bounded = length <= net.features * (1 + 1e-4)
        require(
            is_bounded, f"{line}; it is {length:g} of {net.features}; else set bounded to False"
        )


def _check_vector(case: NetCase) -> None:
    first, second = FlatNet(case.build(1)), FlatNet(case.build(2))
    dtype = first.vector.dtype
    require(dtype == torch.float32, f"parameters must travel as one float32 vector, not {dtype}")
    x, copy = case.make_images(6), deepcopy(first.net)
    before, alone = (net.answer(net.encode(x)) for net in (first.net, copy))
    second.load(first.vector)
    loaded = second.net.answer(second.net.encode(x))
    require(torch.equal(loaded, before), "parameters that another net loads must answer the same")
    first.load(torch.zeros_like(first.vector))
    copied = copy.answer(copy.encode(x))
    require(torch.equal(copied, alone), "a copy of the net must have parameters of its own")


NetCheck = Callable[[NetCase], None]
NET_CHECKS: tuple[NetCheck, ...] = (
    _check_answers,
    _check_repetition,
    _check_rows,
    _check_seed,
    _check_gradients,
)
"""Before a run and in tests; each raises ContractError where a line of the contract breaks."""
NET_TESTS: tuple[NetCheck, ...] = (
    *NET_CHECKS,
    _check_other_seed,
    _check_slopes,
    _check_learning,
    _check_bound,
    _check_vector,
)
"""All, in tests: a run's encoder may be pretrained, or unbounded."""
