"""Contract of losses: what conditional entropies and defences share."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import NamedTuple, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fedcel.errors import ContractError, DivergedError, SettingsError
from fedcel.losses.protocol import State, Term
from fedcel.named_tensors import require_state
from fedcel.plugins import PartName, guard_part, require
from fedcel.seeding import make_twice
from fedcel.short_repr import summarise_record

Loss = TypeVar("Loss")
IMAGES = 24
HALF = slice(IMAGES // 2)  # of a client's images, in a batch
_ROUNDS, _STEPS = 3, 2  # that a state is followed through
_MOST_CLASSES = 3  # that occur in a batch
_NOISE = 0.1  # sd between features and smashed data


class LossBatch(NamedTuple):
    """Images (B, C, H, W), features and noise of the cut (B, D), labels (B,)."""

    x: Float[Tensor, "B C H W"]
    z: Float[Tensor, "B D"]
    xi: Float[Tensor, "B D"]
    y: Int[Tensor, " B"]

    def __repr__(self) -> str:
        """Show shapes in place of numbers."""
        return summarise_record(self)

    def select(self, rows: Tensor | slice) -> "LossBatch":
        """Return some rows, or all in another order."""
        return LossBatch(*(part[rows] for part in self))


class LossCase(ABC):
    """A loss to hold to its contract.

    Each call is made to a new object, since another process may take the next step: what a loss
    keeps stands in its state alone.

    Attributes:
        shape: An image's, (C, H, W).
        features: D.
        classes: C.
    """

    shape: tuple[int, ...]
    features: int
    classes: int

    @abstractmethod
    def refresh(self, state: State | None, batch: LossBatch, seed: int = 3) -> State:
        """Return the state after `refresh`, by a client that has the batch's features."""

    @abstractmethod
    def loss(self, state: State, batch: LossBatch, measure: bool = True) -> Term:
        """Return the term of a batch."""

    @abstractmethod
    def step(self, state: State, batch: LossBatch) -> State:
        """Return the state after `step`."""

    def make_batch(self, seed: int) -> LossBatch:
        """Draw images in [0, 1], normal features and noise; labels go round three classes."""
        generator = torch.Generator().manual_seed(seed)
        z, xi = torch.randn(2, IMAGES, self.features, generator=generator)
        y = torch.arange(IMAGES) % min(_MOST_CLASSES, self.classes)
        return LossBatch(torch.rand(IMAGES, *self.shape, generator=generator), z, _NOISE * xi, y)

    def run_backward(self, state: State, batch: LossBatch) -> None:
        """Let the state's tensors that learn gather their gradient."""
        leaf = batch._replace(z=batch.z.detach().clone().requires_grad_())
        torch.autograd.backward(self.loss(state, leaf).loss)
        require(torch.equal(leaf.z, batch.z), "`loss` must leave the features as they are")

    def evaluate(
        self, state: State, batch: LossBatch
    ) -> tuple[Float[Tensor, ""], Float[Tensor, "B D"]]:
        """Return loss and gradient of a batch, after holding both to what any batch has."""
        leaf = batch._replace(z=batch.z.detach().clone().requires_grad_())
        term, words = self.loss(state, leaf), f"{len(batch.y)} features must be finite, is"
        value = term.loss.detach()
        require(bool(value.isfinite()), f"the loss of {words} {value:g}")
        line = "the loss must have a gradient at the features; it has none"
        require(term.loss.requires_grad, line)
        (gradient,) = torch.autograd.grad(term.loss, leaf.z, allow_unused=True)
        require(gradient is not None, line)
        require(bool(gradient.isfinite().all()), f"the gradient of the loss at {words} not")
        require(torch.equal(leaf.z, batch.z), "`loss` must leave the features as they are")
        for name, metric in term.metrics.items():
            require(bool(metric.isfinite()), f"the metric {name!r} must be finite, is {metric:g}")
            line = f"the metric {name!r} must have no gradient; detach it"
            require(not metric.requires_grad, line)
        unmeasured = self.loss(state, leaf, measure=False)
        line = "`loss` must give the same to the bit each time, with measure=False too; it draws "
        require(torch.equal(unmeasured.loss, term.loss), line + "nothing")
        require(not unmeasured.metrics, "measure=False must give no metrics")
        return value, gradient

    def play_rounds(self, store: bool) -> Iterator[State]:
        """Yield the state after each of three rounds; `store` it between them."""
        state: State | None = None
        for seed in range(_ROUNDS):
            last = store_state(state) if store and state is not None else state
            state = self.refresh(last, self.make_batch(14), seed)
            if last is not None:
                line = "`refresh` must go on from a stored state with the same names"
                is_same = last.keys() == state.keys()
                require(is_same, f"{line}; {sorted(last)} became {sorted(state)}")
            for step in range(_STEPS):
                batch = self.make_batch(12 + step)
                self.run_backward(state, batch)
                state = self.step(state, batch)
            yield state


def require_term(term: object) -> Term:
    """Refuse what is no `Term` of a scalar tensor and scalar metrics by name."""
    line = "`loss` must return fedcel.Term(loss, metrics)"
    require(isinstance(term, Term), f"{line}; it returned {type(term).__name__}")
    assert isinstance(term, Term)
    kind = type(term.loss).__name__
    require(isinstance(term.loss, Tensor), f"{line}, whose loss is a tensor; it is {kind}")
    shape = tuple(term.loss.shape)
    require(shape == (), f"{line}, whose loss is a scalar; its shape is {shape}")
    line = f"{line}, whose metrics are"
    require(isinstance(term.metrics, dict), f"{line} a dictionary by name")
    for name, value in term.metrics.items():
        is_scalar = isinstance(value, Tensor) and value.shape == ()
        require(is_scalar, f"{line} scalar tensors; {name!r} is {value!r:.60}")
    return term


def guard_loss(part: PartName, loss: Loss) -> Loss:
    """Guard a user's loss or defence; see `guard_part`."""
    return guard_part(
        part,
        loss,
        refresh=partial(require_state, method="refresh"),
        loss=require_term,
        step=partial(require_state, method="step"),
    )


def store_state(state: State) -> State:
    """Return a state as it comes back from a file between two rounds, unless it cannot."""
    for name, tensor in state.items():
        line = f"the state must survive being stored; {name!r} is not"
        require(tensor.is_contiguous(), f"{line} contiguous: call .contiguous()")
        require(bool(tensor.isfinite().all()), f"{line} finite")
    return {
        name: torch.from_numpy(tensor.detach().numpy().copy()) for name, tensor in state.items()
    }


def _check_gradient(case: LossCase) -> None:
    batch = case.make_batch(7)
    first, again = make_twice(lambda: case.evaluate(case.refresh(None, batch), batch.select(HALF)))
    line = "of the same generator and batch must come"
    require(torch.equal(first[0], again[0]), f"the same loss {line}, another one came")
    require(torch.equal(first[1], again[1]), f"the same gradient {line}, another one came")
    require(
        bool(first[1].any()),
        "features that spread within their classes must have a gradient; it is 0",
    )


def _check_inputs(case: LossCase) -> None:
    batch, before = case.make_batch(13), case.make_batch(13)
    state = case.refresh(None, batch)
    tensors = {name: (t, t.detach().clone(), t._version) for name, t in state.items()}
    case.run_backward(state, batch)
    line = "`loss` must leave the state as it is"
    require(state.keys() == tensors.keys(), f"{line}; it has other names now")
    for name, (tensor, value, version) in tensors.items():
        is_same = state[name] is tensor and tensor._version == version
        require(is_same and torch.equal(tensor.detach(), value), f"{line}; it changed {name!r}")
    case.step(state, batch)
    is_left = all(map(torch.equal, batch, before))
    require(is_left, "images, features and labels must be left as they are; they were written to")


def _check_small_batches(case: LossCase) -> None:
    batch = case.make_batch(10)
    is_last = batch.y == batch.y.max()  # classes before it may be absent
    others, last = (~is_last).nonzero()[:, 0], is_last.nonzero()[:, 0]
    batches = {
        "one image": batch.select(last[:1]),
        "two equal images": batch.select(last[[0, 0]]),
        "equal features": batch._replace(z=batch.z[:1].expand_as(batch.z)),
        "a single class": batch.select(last),
        "a class of one image": batch.select(torch.cat([others, last[:1]])),
    }
    for stored in (batch, batches["a single class"]):
        state = case.refresh(None, stored)
        for words, few in batches.items():
            try:
                case.evaluate(state, few)
            except ContractError as error:
                raise ContractError(f"on a batch of {words}: {error}") from None


def _check_undefined_features(case: LossCase) -> None:
    batch = case.make_batch(18)
    state = case.refresh(None, batch)
    batch.z[2, 0] = torch.nan
    with suppress(DivergedError):
        is_hidden = bool(case.loss(state, batch).loss.isfinite())
        require(not is_hidden, "of NaN the loss must not be finite, or a diverged run goes on")


def _check_stored_state(case: LossCase) -> None:
    line = "a state that was stored and read again must give the same"
    for state, stored in zip(case.play_rounds(False), case.play_rounds(True), strict=True):
        require(_are_equal(state, stored), f"{line} next state")
        batch = case.make_batch(20)
        values = case.evaluate(state, batch), case.evaluate(store_state(state), batch)
        require(all(map(torch.equal, *values)), f"{line} loss")


def _are_equal(state: State, other: State) -> bool:
    """Whether two states have the same names and the same bits."""
    return state.keys() == other.keys() and all(torch.equal(state[n], other[n]) for n in state)


def _check_foreign_state(case: LossCase) -> None:
    batch = case.make_batch(19)
    with suppress(SettingsError):  # or a state that the loss can use
        case.evaluate(case.refresh({"foreign": torch.ones(3)}, batch), batch)


def _check_every_image(case: LossCase) -> None:
    batch = case.make_batch(7)
    _, gradient = case.evaluate(case.refresh(None, batch), batch.select(HALF))
    line = "each image of several a class must have a gradient"
    require(bool(gradient.any(1).all()), f"{line}; that of {int((~gradient.any(1)).sum())} is 0")


def _check_order(case: LossCase) -> None:
    batch = case.make_batch(8)
    state, order = (
        case.refresh(None, batch),
        torch.randperm(IMAGES // 2, generator=torch.Generator()),
    )
    loss, gradient = case.evaluate(state, batch.select(HALF))
    shuffled = case.evaluate(state, batch.select(order))
    is_same = torch.allclose(shuffled[0], loss, rtol=1e-6, atol=1e-6) and torch.allclose(
        shuffled[1], gradient[order], rtol=1e-5, atol=1e-6
    )
    require(is_same, "the order of a batch must change neither loss nor gradient")


LossCheck = Callable[[LossCase], None]
LOSS_CHECKS: tuple[LossCheck, ...] = (
    _check_gradient,
    _check_inputs,
    _check_small_batches,
    _check_undefined_features,
    _check_stored_state,
)
"""Before a run and in tests; each raises ContractError where a line of the contract breaks."""
LOSS_TESTS: tuple[LossCheck, ...] = (
    *LOSS_CHECKS,
    _check_foreign_state,
    _check_every_image,
    _check_order,
)
"""All, in tests: the settings of a run may leave images out, or give features of any size."""
