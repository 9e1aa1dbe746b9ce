"""The short form of the contracts of defences, held before a run begins."""

from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from fedcel.errors import DivergedError
from fedcel.losses.contract import (
    evaluate_term,
    require_state,
    require_term,
    require_unchanged,
    store_state,
)
from fedcel.losses.defences.protocol import Defence, Transform
from fedcel.losses.protocol import State
from fedcel.plugins import require
from fedcel.seeding import make_twice
from fedcel.short_repr import summarise_record

_BATCH = 12  # images
_NOISE = 0.1  # sd between features and smashed data


class SentBatch(NamedTuple):
    """Images, their features, and the noise between these and the smashed data."""

    x: Float[Tensor, "B C H W"]
    z: Float[Tensor, "B D"]
    xi: Float[Tensor, "B D"]

    def __repr__(self) -> str:
        """Show shapes in the place of numbers."""
        return summarise_record(self)


class DefenceCase(NamedTuple):
    """A defence with a loss to hold to its contract.

    Attributes:
        build: Makes the defence anew: what it keeps stands in its state alone.
        shape: An image's, (C, H, W).
        features: D.
    """

    build: Callable[[], Defence]
    shape: tuple[int, ...]
    features: int

    def make_batch(self, seed: int, count: int = _BATCH) -> SentBatch:
        """Return images (count, C, H, W) in [0, 1], normal features (count, D), noise of sd .1."""
        generator = torch.Generator().manual_seed(seed)
        z, xi = torch.randn(2, count, self.features, generator=generator)
        return SentBatch(torch.rand(count, *self.shape, generator=generator), z, _NOISE * xi)

    def refresh(self, state: State | None = None, seed: int = 3) -> State:
        """Return the state after `refresh`."""
        generator = torch.Generator().manual_seed(seed)
        return require_state(self.build().refresh(state, generator), "refresh")

    def evaluate(
        self, state: State, batch: SentBatch
    ) -> tuple[Float[Tensor, ""], Float[Tensor, "B D"]]:
        """Return loss and gradient of a batch, after holding both to what any batch has."""
        return evaluate_term(
            lambda z, measure: self.build().loss(state, batch.x, z, z + batch.xi, measure), batch.z
        )

    def run_backward(self, state: State, batch: SentBatch) -> None:
        """Let the state's tensors that learn gather their gradient."""
        z = batch.z.detach().clone().requires_grad_()
        term = require_term(self.build().loss(state, batch.x, z, z + batch.xi))
        torch.autograd.backward(term.loss)


def _check_gradient(case: DefenceCase) -> None:
    batch = case.make_batch(7)
    (loss, gradient), (loss_again, gradient_again) = make_twice(
        lambda: case.evaluate(case.refresh(), batch)
    )
    line = "of the same generator and batch must come"
    require(torch.equal(loss, loss_again), f"the same loss {line}, another one came")
    require(torch.equal(gradient, gradient_again), f"the same gradient {line}, another one came")
    require(bool(gradient.any()), "features must have a gradient; it is 0")


def _check_inputs(case: DefenceCase) -> None:
    batch, before, state = case.make_batch(11), case.make_batch(11), case.refresh()
    require_unchanged(state, lambda: case.run_backward(state, batch))
    is_left = all(map(torch.equal, batch, before))
    require(is_left, "images and features must be left as they are; they were written to")


def _check_small_batches(case: DefenceCase) -> None:
    case.evaluate(case.refresh(), case.make_batch(9, 1))


def _check_undefined_features(case: DefenceCase) -> None:
    x, z, xi = case.make_batch(21)
    z[2, 1] = torch.nan
    with suppress(DivergedError):
        term = require_term(case.build().loss(case.refresh(), x, z, z + xi))
        is_hidden = bool(term.loss.isfinite())
        require(not is_hidden, "of NaN the loss must not be finite, or a diverged run goes on")


def _check_stored_state(case: DefenceCase) -> None:
    state: State | None = None
    for seed in range(2):
        state = case.refresh(state, seed)
        case.run_backward(state, case.make_batch(12))
        state = require_state(case.build().step(state), "step")
        loss, gradient = case.evaluate(state, case.make_batch(20))
        state = store_state(state)
        loss_again, gradient_again = case.evaluate(state, case.make_batch(20))
        is_same = torch.equal(loss, loss_again) and torch.equal(gradient, gradient_again)
        require(is_same, "a state that was stored and read again must give the same loss")


DEFENCE_CHECKS: tuple[Callable[[DefenceCase], None], ...] = (
    _check_gradient,
    _check_inputs,
    _check_small_batches,
    _check_undefined_features,
    _check_stored_state,
)
"""Each raises ContractError where a line of the contract of defences with a loss does not hold."""


class TransformCase(NamedTuple):
    """A change of what is sent to hold to its contract.

    Attributes:
        transform: The change.
        z: Features (B, D) of at least two images.
    """

    transform: Transform
    z: Float[Tensor, "B D"]

    def __repr__(self) -> str:
        """Show shapes in the place of numbers."""
        return summarise_record(self)

    def change(self, z: Float[Tensor, "B D"]) -> Float[Tensor, "B D"]:
        """Return what is sent in the place of features, after a look at its shape and values."""
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


def _check_shape(case: TransformCase) -> None:
    z = case.z.detach().clone()
    case.change(z)
    require(torch.equal(z, case.z), "`transform` must leave the features it is given as they are")


def _check_rows(case: TransformCase) -> None:
    z = case.z.detach()
    row_by_row = torch.cat([case.change(row) for row in torch.split(z, 1)])
    require(
        torch.allclose(row_by_row, case.change(z), atol=1e-5),
        "`transform` must see one image's features at a time and draw nothing: the cut adds the "
        "noise; features were not changed the same way again, or alone",
    )


def _check_way_back(case: TransformCase) -> None:
    z = case.z.detach().clone().requires_grad_()
    changed = case.change(z)
    weights = torch.randn(changed.shape, generator=torch.Generator().manual_seed(0))
    line = "`transform` must let a finite gradient through, or no encoder could learn; return "
    line += "z + (changed - z).detach()"
    require(changed.requires_grad, line)
    (gradient,) = torch.autograd.grad((changed * weights).sum(), z, allow_unused=True)
    passes = gradient is not None and bool(gradient.any() and gradient.isfinite().all())
    require(passes, line)


TRANSFORM_CHECKS: tuple[Callable[[TransformCase], None], ...] = (
    _check_shape,
    _check_rows,
    _check_way_back,
)
"""Each raises ContractError where a line of the contract of transforms does not hold."""
