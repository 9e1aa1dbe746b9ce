"""Contract of losses of one client: conditional entropies and defences."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from math import inf

import torch
from jaxtyping import Float
from torch import Tensor

from fedcel.errors import ContractError, DataError, DivergedError, SettingsError
from fedcel.losses.protocol import Batch, ClientLoss, State, Term
from fedcel.plugins import require
from fedcel.tensors import require_state
from fedcel.torch_state import make_twice

IMAGES = 24
HALF = slice(IMAGES // 2)  # of a client's images, in a batch
_ROUNDS, _STEPS = 3, 2  # that a state is followed through
_MOST_CLASSES = 3  # that occur in a batch
_NOISE = 0.1  # sd between features and smashed data
SERVER_METRICS = frozenset(
    {
        "round", "clients", "rejected", "rate", "temperature", "cel-weight", "pull", "seconds",
        "accuracy", "nll", "ece", "brier", "within-class-spread", "kept-share",
        "bits-beyond-label", "bits-half-width", "bits-cap", "cel-threshold", "r-hat", "ess",
        "geweke", "metrics-left-out", "lost-states", "shared-keys",
    }
)  # fmt: skip
"""Names in the server's line of a round; metrics of clients are never taken for them."""
RESERVED_METRICS = SERVER_METRICS | {
    "loss",
    "clipped",
    "update-information",
    "num-examples",
    "partition",
    "server-round",
    "state-round",
    "state-start",
    "incarnation",
    "client-drift",
    "heaviest-update",
}
"""Numbers of every client or round besides the metrics of the losses."""


@dataclass(frozen=True)
class LossCase:
    """A loss of one client to hold to its contract.

    Each call is made to a new object, since another process may take the next step: what a loss
    keeps stands only in its state. Batches have no dimension of clients.

    Attributes:
        build: Makes the loss.
        features: D.
        classes: C.
        shape: An image's, (C, H, W).
        least: Least value of the loss, 0 of a conditional entropy.
        shift_invariant: Whether one number that is added to all features changes nothing.
        metric_names: Names of all metrics that the loss gave so far.
    """

    build: Callable[[], ClientLoss]
    features: int
    classes: int = 3
    shape: tuple[int, ...] = (1, 1, 1)
    least: float = -inf
    shift_invariant: bool = True
    metric_names: set[str] = field(default_factory=set, init=False)

    def refresh(self, state: State | None, batch: Batch, seed: int = 3) -> State:
        """Return the state that a round begins with, of a client that has the batch's features."""
        generator = torch.Generator().manual_seed(seed)
        after = self.build().refresh(state, lambda: iter([(batch.z, batch.y)]), generator)
        return require_state(after, "refresh")

    def loss(self, state: State, batch: Batch, measure: bool = True) -> Term:
        """Return the term of a batch."""
        term = require_term(self.build().loss(state, batch, measure))
        value = term.loss.item()
        require(not value < self.least, f"the loss must be {self.least:g} or more, is {value:g}")
        self.metric_names.update(term.metrics)
        return term

    def update(self, state: State) -> State:
        """Return the state after what learns has moved."""
        return require_state(self.build().update(state), "update")

    def make_batch(self, seed: int) -> Batch:
        """Draw images in [0, 1], normal features and noise; labels go round three classes."""
        generator = torch.Generator().manual_seed(seed)
        z, noise = torch.randn(2, IMAGES, self.features, generator=generator)
        y = torch.arange(IMAGES) % min(_MOST_CLASSES, self.classes)
        x = torch.rand(IMAGES, *self.shape, generator=generator)
        return Batch(x, z, z + _NOISE * noise, y)

    def run_backward(self, state: State, batch: Batch) -> None:
        """Let the state's tensors that learn gather their gradient."""
        leaf = replace_features(batch, batch.z.detach().clone().requires_grad_())
        torch.autograd.backward(self.loss(state, leaf).loss)
        require(torch.equal(leaf.z, batch.z), "`loss` must leave the features as they are")

    def evaluate(
        self, state: State, batch: Batch
    ) -> tuple[Float[Tensor, ""], Float[Tensor, "B D"]]:
        """Return loss and gradient of a batch, after holding both to what any batch has."""
        leaf = replace_features(batch, batch.z.detach().clone().requires_grad_())
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
                state = self.update(state)
            yield state


def replace_features(batch: Batch, z: Float[Tensor, "B D"]) -> Batch:
    """Return a batch of other features with the same noise."""
    return batch._replace(z=z, smashed=z + (batch.smashed - batch.z).detach())


def select_images(batch: Batch, rows: Tensor | slice) -> Batch:
    """Return some images of a batch, or all in another order."""
    return Batch(*(part[rows] for part in batch if part is not None))


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
    reserved = sorted(term.metrics.keys() & RESERVED_METRICS)
    require(
        not reserved,
        f"fedcel itself reports a metric {', '.join(reserved)}; choose another name",
    )
    return term


LOSS_RESULTS: dict[str, Callable[..., object]] = {
    "refresh": partial(require_state, method="refresh"),
    "loss": require_term,
    "update": partial(require_state, method="update"),
}
"""Checks of what each method returns."""


def store_state(state: State) -> State:
    """Return a state as it comes back from a file between two rounds, unless it cannot."""
    for name, tensor in state.items():
        line = f"the state must survive being stored; {name!r} is not"
        require(tensor.is_contiguous(), f"{line} contiguous: call .contiguous()")
        require(bool(tensor.isfinite().all()), f"{line} finite")
    return {
        name: torch.from_numpy(tensor.detach().numpy().copy()) for name, tensor in state.items()
    }


def _are_equal(state: State, other: State) -> bool:
    """Whether two states have the same names and the same bits."""
    return state.keys() == other.keys() and all(torch.equal(state[n], other[n]) for n in state)


def _check_gradient(case: LossCase) -> None:
    batch = case.make_batch(7)
    half = select_images(batch, HALF)
    first, again = make_twice(lambda: case.evaluate(case.refresh(None, batch), half))
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
    is_left = all(map(torch.equal, batch[:4], before[:4]))
    require(is_left, "images, features and labels must be left as they are; they were written to")


def _check_small_batches(case: LossCase) -> None:
    batch = case.make_batch(10)
    is_last = batch.y == batch.y.max()  # classes before it may be absent
    others, last = (~is_last).nonzero()[:, 0], is_last.nonzero()[:, 0]
    batches = {
        "one image": select_images(batch, last[:1]),
        "two equal images": select_images(batch, last[[0, 0]]),
        "equal features": replace_features(batch, batch.z[:1].expand_as(batch.z)),
        "a single class": select_images(batch, last),
        "a class of one image": select_images(batch, torch.cat([others, last[:1]])),
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
    with suppress(DivergedError):
        is_hidden = bool(case.loss(state, _spoil_feature(batch, torch.nan)).loss.isfinite())
        require(not is_hidden, "of NaN the loss must not be finite, or a diverged run goes on")


def _spoil_feature(batch: Batch, value: float) -> Batch:
    z = batch.z.clone()
    z[2, 0] = value
    return replace_features(batch, z)


def _check_stored_state(case: LossCase) -> None:
    line = "a state that was stored and read again must give the same"
    for state, stored in zip(case.play_rounds(False), case.play_rounds(True), strict=True):
        require(_are_equal(state, stored), f"{line} next state")
        batch = case.make_batch(20)
        values = case.evaluate(state, batch), case.evaluate(store_state(state), batch)
        require(all(map(torch.equal, *values)), f"{line} loss")


def _check_foreign_state(case: LossCase) -> None:
    batch = case.make_batch(19)
    with suppress(SettingsError):  # or a state that the loss can use
        case.evaluate(case.refresh({"foreign": torch.ones(3)}, batch), batch)


def _check_every_image(case: LossCase) -> None:
    batch = case.make_batch(7)
    _, gradient = case.evaluate(case.refresh(None, batch), select_images(batch, HALF))
    line = "each image of several a class must have a gradient"
    require(bool(gradient.any(1).all()), f"{line}; that of {int((~gradient.any(1)).sum())} is 0")


def _check_order(case: LossCase) -> None:
    batch = case.make_batch(8)
    order = torch.randperm(IMAGES // 2, generator=torch.Generator())
    state = case.refresh(None, batch)
    loss, gradient = case.evaluate(state, select_images(batch, HALF))
    shuffled = case.evaluate(state, select_images(batch, order))
    is_same = torch.allclose(shuffled[0], loss, rtol=1e-6, atol=1e-6) and torch.allclose(
        shuffled[1], gradient[order], rtol=1e-5, atol=1e-6
    )
    require(is_same, "the order of a batch must change neither loss nor gradient")


def _check_labels(case: LossCase) -> None:
    batch = case.make_batch(17)
    state = case.refresh(None, batch)
    for label in (-1, case.classes):
        y = batch.y.clone()
        y[5] = label
        wrong = batch._replace(y=y)
        try:
            case.loss(state, wrong)
        except DataError:
            pass
        else:
            require(False, f"label {label} of {case.classes} classes must be refused: DataError")
        with suppress(DataError):  # a loss that reads no statistics never sees it there
            case.refresh(None, wrong)


def _check_undefined_statistics(case: LossCase) -> None:
    batch = case.make_batch(18)
    state = case.refresh(None, batch)
    for value in (torch.nan, torch.inf):
        spoiled = _spoil_feature(batch, value)
        with suppress(DivergedError):
            is_hidden = bool(case.loss(state, spoiled).loss.isfinite())
            require(not is_hidden, f"of {value} the loss must not be finite")
        with suppress(DivergedError):
            store_state(case.refresh(None, spoiled))


def _check_absent_classes(case: LossCase) -> None:
    batch = case.make_batch(10)
    for stored in (batch, select_images(batch, batch.y < 2)):
        state = case.refresh(None, stored)
        for chosen in (batch.y == 1, batch.y < 2, (batch.y < 2) | (torch.arange(IMAGES) == 2)):
            loss, _ = case.evaluate(state, select_images(batch, chosen))
            require(bool(loss > 0), "classes that spread must cost something beside absent ones")


def _check_no_signal(case: LossCase) -> None:
    batch = case.make_batch(11)
    state = case.refresh(None, select_images(batch, batch.y < 2))
    loss, gradient = case.evaluate(state, select_images(batch, torch.tensor([2])))
    is_zero = not loss.any() and not gradient.any()
    require(is_zero, "one image of a class that the client never had must cost 0, gradient 0")


def _check_equal_features(case: LossCase) -> None:
    batch = case.make_batch(12)
    equal = replace_features(batch, torch.full_like(batch.z, 0.3))
    loss, _ = case.evaluate(case.refresh(None, equal), equal)
    require(bool(loss < 1e-6), f"equal features must cost nothing, cost {loss:g}")


def _check_shift(case: LossCase) -> None:
    if case.shift_invariant:
        batch = case.make_batch(9)
        moved = replace_features(batch, batch.z + 2)
        loss, _ = case.evaluate(case.refresh(None, batch), select_images(batch, HALF))
        shifted, _ = case.evaluate(case.refresh(None, moved), select_images(moved, HALF))
        is_same = torch.allclose(shifted, loss, rtol=1e-4, atol=1e-5)
        line = "2 added to all features must change nothing, or set shift_invariant to False"
        require(is_same, f"{line}; {loss:g} became {shifted:g}")


def _check_weight(case: LossCase) -> None:
    batch = case.make_batch(15)
    batch = replace_features(batch, batch.z.double())
    leaf = batch.z.clone().requires_grad_()
    state, encoded = case.refresh(None, batch), replace_features(batch, leaf.clone())
    loss = case.loss(state, encoded).loss
    (plain,) = torch.autograd.grad(loss, leaf, retain_graph=True)
    (weighted,) = torch.autograd.grad(0.3 * loss, leaf)
    is_same = torch.allclose(weighted, 0.3 * plain, rtol=1e-12, atol=1e-12)
    require(is_same, "a second backward pass, of 0.3 times the loss, must give 0.3 the gradient")


def _check_one_update(case: LossCase) -> None:
    for state in case.play_rounds(store=False):
        is_same = _are_equal(case.update(state), state)
        require(is_same, "without another backward pass a second `update` must change nothing")


LossCheck = Callable[[LossCase], None]
LOSS_CHECKS: tuple[LossCheck, ...] = (
    _check_gradient,
    _check_inputs,
    _check_small_batches,
    _check_undefined_features,
    _check_stored_state,
)
"""Before a run and in tests; each raises ContractError where a line of the contract breaks."""
_LOSS_TESTS: tuple[LossCheck, ...] = (
    *LOSS_CHECKS,
    _check_foreign_state,
    _check_every_image,
    _check_order,
)
"""All, in tests: the settings of a run may leave images out, or give features of any size."""
CEL_TESTS: tuple[LossCheck, ...] = (
    *_LOSS_TESTS,
    _check_labels,
    _check_undefined_statistics,
    _check_absent_classes,
    _check_no_signal,
    _check_equal_features,
    _check_shift,
    _check_weight,
)
"""Those of conditional entropies, of 4 features and 3 classes under a penalty that is not flat."""
DEFENCE_TESTS: tuple[LossCheck, ...] = (*_LOSS_TESTS, _check_one_update)
"""Those of defences with a loss."""
