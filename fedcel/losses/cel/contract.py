"""The short form of the contract of conditional entropy losses, held before a run begins."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fedcel.errors import ContractError, DivergedError
from fedcel.losses.contract import (
    evaluate_term,
    require_state,
    require_term,
    require_unchanged,
    store_state,
)
from fedcel.losses.protocol import ConditionalEntropy, State, split_features
from fedcel.plugins import require
from fedcel.seeding import make_twice

_COUNT, _BATCH = 24, 12  # features of a client and of a batch
_MOST_CLASSES = 3  # that occur in the features


class CELCase(NamedTuple):
    """A conditional entropy loss to hold to its contract.

    Attributes:
        build: Makes the loss anew: what it keeps stands in its state alone.
        features: D.
        classes: C.
    """

    build: Callable[[], ConditionalEntropy]
    features: int
    classes: int

    def make_features(self, seed: int) -> tuple[Float[Tensor, "N D"], Int[Tensor, " N"]]:
        """Return normal features (24, D), and labels that go round up to three classes."""
        generator = torch.Generator().manual_seed(seed)
        z = torch.randn(_COUNT, self.features, generator=generator)
        return z, torch.arange(_COUNT) % min(_MOST_CLASSES, self.classes)

    def refresh(self, state: State | None, z: Tensor, y: Tensor, seed: int = 3) -> State:
        """Return the state after `refresh` on a client's features."""
        generator = torch.Generator().manual_seed(seed)
        batches = split_features(z, y)
        return require_state(self.build().refresh(state, batches, generator), "refresh")

    def evaluate(
        self, state: State, z: Float[Tensor, "B D"], y: Int[Tensor, " B"]
    ) -> tuple[Float[Tensor, ""], Float[Tensor, "B D"]]:
        """Return loss and gradient of a batch, after holding both to what any batch has."""
        return evaluate_term(lambda leaf, measure: self.build().loss(state, leaf, y, measure), z)

    def play_rounds(self, z: Tensor, y: Tensor) -> Iterator[State]:
        """Yield the state after each of three rounds: refresh, loss, backward, step."""
        loss, state = self.build(), None
        for seed in range(3):
            state = self.refresh(state, z, y, seed)
            term = require_term(loss.loss(state, z.clone().requires_grad_(), y))
            torch.autograd.backward(term.loss)
            state = require_state(loss.step(state, z, y), "step")
            yield state


def _check_gradient(case: CELCase) -> None:
    z, y = case.make_features(7)
    (loss, gradient), (loss_again, gradient_again) = make_twice(
        lambda: case.evaluate(case.refresh(None, z, y), z[:_BATCH], y[:_BATCH])
    )
    line = "of the same generator and batch must come"
    require(torch.equal(loss, loss_again), f"the same loss {line}, another one came")
    require(torch.equal(gradient, gradient_again), f"the same gradient {line}, another one came")
    acts = bool(gradient.any())
    require(acts, "features that spread within their classes must have a gradient; it is 0")


def _check_inputs(case: CELCase) -> None:
    z, y = case.make_features(13)
    features, labels = z.clone(), y.clone()
    state = case.refresh(None, features, labels)
    leaf = features.clone().requires_grad_()

    def run_backward() -> None:
        torch.autograd.backward(require_term(case.build().loss(state, leaf, labels)).loss)

    require_unchanged(state, run_backward)
    case.build().step(state, features, labels)
    is_left = torch.equal(features, z) and torch.equal(labels, y) and torch.equal(leaf, z)
    require(is_left, "features and labels must be left as they are; they were written to")


def _check_small_batches(case: CELCase) -> None:
    z, y = case.make_features(10)
    batches = {"a single class": y == 1, "one row": torch.arange(_COUNT) == 1}
    for state in (case.refresh(None, z, y), case.refresh(None, z[y == 1], y[y == 1])):
        for words, chosen in batches.items():
            try:
                case.evaluate(state, z[chosen], y[chosen])
            except ContractError as error:
                raise ContractError(f"on a batch of {words}: {error}") from None


def _check_undefined_features(case: CELCase) -> None:
    z, y = case.make_features(18)
    state = case.refresh(None, z, y)
    z[2, 1] = torch.nan
    with suppress(DivergedError):
        is_hidden = bool(require_term(case.build().loss(state, z, y)).loss.isfinite())
        require(not is_hidden, "of NaN the loss must not be finite, or a diverged run goes on")


def _check_stored_state(case: CELCase) -> None:
    z, y = case.make_features(14)
    for state in case.play_rounds(z, y):
        stored = store_state(state)
        loss, gradient = case.evaluate(state, z, y)
        loss_again, gradient_again = case.evaluate(stored, z, y)
        is_same = torch.equal(loss, loss_again) and torch.equal(gradient, gradient_again)
        require(is_same, "a state that was stored and read again must give the same loss")
        names = case.refresh(stored, z, y).keys()
        line = "`refresh` must go on from a stored state with the same names"
        require(names == state.keys(), f"{line}; {sorted(state)} became {sorted(names)}")


CEL_CHECKS: tuple[Callable[[CELCase], None], ...] = (
    _check_gradient,
    _check_inputs,
    _check_small_batches,
    _check_undefined_features,
    _check_stored_state,
)
"""Each raises ContractError where a line of the contract does not hold."""
