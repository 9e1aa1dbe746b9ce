"""Contract of conditional entropy losses."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import torch

from fedcel.errors import DataError, DivergedError
from fedcel.losses.contract import (
    HALF,
    IMAGES,
    LOSS_TESTS,
    LossBatch,
    LossCase,
    require_term,
    store_state,
)
from fedcel.losses.protocol import ConditionalEntropy, State, Term, split_features
from fedcel.named_tensors import require_state
from fedcel.plugins import require


@dataclass(frozen=True)
class CELCase(LossCase):
    """A conditional entropy loss to hold to its contract.

    Attributes:
        build: Makes the loss.
        shift_invariant: Whether one number that is added to all features changes nothing.
    """

    build: Callable[[], ConditionalEntropy]
    features: int
    classes: int
    shift_invariant: bool = True
    shape: tuple[int, ...] = (1, 1, 1)

    def refresh(self, state: State | None, batch: LossBatch, seed: int = 3) -> State:
        """Return the state after `refresh`; see `LossCase.refresh`."""
        generator = torch.Generator().manual_seed(seed)
        batches = split_features(batch.z, batch.y)
        return require_state(self.build().refresh(state, batches, generator), "refresh")

    def loss(self, state: State, batch: LossBatch, measure: bool = True) -> Term:
        """Return the term of a batch, which is never below 0; see `LossCase.loss`."""
        term = require_term(self.build().loss(state, batch.z, batch.y, measure))
        value = term.loss.item()
        require(not value < 0, f"the loss must be 0 or more, is {value:g}")
        return term

    def step(self, state: State, batch: LossBatch) -> State:
        """Return the state after `step`; see `LossCase.step`."""
        return require_state(self.build().step(state, batch.z, batch.y), "step")


def _check_labels(case: CELCase) -> None:
    batch = case.make_batch(17)
    state = case.refresh(None, batch)
    for label in (-1, case.classes):
        y = batch.y.clone()
        y[5] = label
        bad = batch._replace(y=y)
        try:
            case.loss(state, bad)
        except DataError:
            pass
        else:
            require(False, f"label {label} of {case.classes} classes must be refused: DataError")
        with suppress(DataError):  # a loss that reads no statistics never sees it there
            case.refresh(None, bad)
        with suppress(DataError):
            case.step(state, bad)


def _check_undefined_statistics(case: CELCase) -> None:
    batch = case.make_batch(18)
    state = case.refresh(None, batch)
    for value in (torch.nan, torch.inf):
        batch.z[2, 1] = value
        with suppress(DivergedError):
            is_hidden = bool(case.loss(state, batch).loss.isfinite())
            require(not is_hidden, f"of {value} the loss must not be finite")
        with suppress(DivergedError):
            store_state(case.refresh(None, batch))
        with suppress(DivergedError):
            store_state(case.step(state, batch))


def _check_absent_classes(case: CELCase) -> None:
    batch = case.make_batch(10)
    for stored in (batch, batch.select(batch.y < 2)):
        state = case.refresh(None, stored)
        for chosen in (batch.y == 1, batch.y < 2, (batch.y < 2) | (torch.arange(IMAGES) == 2)):
            loss, _ = case.evaluate(state, batch.select(chosen))
            require(bool(loss > 0), "classes that spread must cost something beside absent ones")


def _check_no_signal(case: CELCase) -> None:
    batch = case.make_batch(11)
    state = case.refresh(None, batch.select(batch.y < 2))
    loss, gradient = case.evaluate(state, batch.select(torch.tensor([2])))
    is_zero = not loss.any() and not gradient.any()
    require(is_zero, "one image of a class that the client never had must cost 0, gradient 0")


def _check_equal_features(case: CELCase) -> None:
    batch = case.make_batch(12)
    equal = batch._replace(z=torch.full_like(batch.z, 0.3))
    loss, _ = case.evaluate(case.refresh(None, equal), equal)
    require(bool(loss < 1e-6), f"equal features must cost nothing, cost {loss:g}")


def _check_shift(case: CELCase) -> None:
    if case.shift_invariant:
        batch = case.make_batch(9)
        moved = batch._replace(z=batch.z + 2)
        loss, _ = case.evaluate(case.refresh(None, batch), batch.select(HALF))
        shifted, _ = case.evaluate(case.refresh(None, moved), moved.select(HALF))
        is_same = torch.allclose(shifted, loss, rtol=1e-4, atol=1e-5)
        line = "2 added to all features must change nothing, or set shift_invariant to False"
        require(is_same, f"{line}; {loss:g} became {shifted:g}")


def _check_weight(case: CELCase) -> None:
    batch = case.make_batch(15)
    batch = batch._replace(z=batch.z.double())
    leaf = batch.z.clone().requires_grad_()
    state, encoded = case.refresh(None, batch), batch._replace(z=leaf.clone())
    loss = case.loss(state, encoded).loss
    (plain,) = torch.autograd.grad(loss, leaf, retain_graph=True)
    (weighted,) = torch.autograd.grad(0.3 * loss, leaf)
    is_same = torch.allclose(weighted, 0.3 * plain, rtol=1e-12, atol=1e-12)
    require(is_same, "a second backward pass, of 0.3 times the loss, must give 0.3 the gradient")


CEL_TESTS: tuple[Callable[[CELCase], None], ...] = (
    *LOSS_TESTS,
    _check_labels,
    _check_undefined_statistics,
    _check_absent_classes,
    _check_no_signal,
    _check_equal_features,
    _check_shift,
    _check_weight,
)
"""All, in tests of 4 features and 3 classes under a penalty that is not flat."""
