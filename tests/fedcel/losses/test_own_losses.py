"""A user's loss or defence that breaks its contract is refused before a run, or named in it."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from fedcel.check_parts import build_parts
from fedcel.errors import FailedError, PluginError
from fedcel.federation import KEPT_SHARE, record_names
from fedcel.federation.local_steps import _SUMMARIES
from fedcel.federation.server_round import CLIENT_DRIFT, HEAVIEST
from fedcel.losses import Batch, ClientLoss
from fedcel.losses.cel import (
    CEL,
    CutShape,
    FeatureBatches,
    Plain,
    State,
    Term,
    log_penalty,
)
from fedcel.losses.contract import RESERVED_METRICS, SERVER_METRICS
from fedcel.losses.defences.rival import Rival
from fedcel.settings import Settings, parse_settings
from tests.fedcel.losses.single import options, single

SHAPE = (1, 4, 4)


class Spread(ClientLoss):
    """A loss that holds the contract: the mean variance of each class; it takes any arguments."""

    def __init__(self, *arguments: object) -> None:
        self.plain = single(Plain(penalty="linear"))

    def loss(self, state: State, batch: Batch, measure: bool = True) -> Term:
        return self.plain.loss(state, batch.z, batch.y, measure)


def change_loss(loss: Callable[[Term, Tensor, Tensor], object]) -> type[Spread]:
    """Return a loss that makes something else of its term, features and labels."""

    class Changed(Spread):
        """One line of the contract is broken."""

        def loss(self, state: State, batch: Batch, measure: bool = True) -> Term:
            return loss(super().loss(state, batch, measure), batch.z, batch.y)  # type: ignore[return-value]

    return Changed


def change_methods(**methods: Callable[..., Any]) -> type[Spread]:
    return type("Changed", (Spread,), methods)


def name_metric(name: str) -> type[Spread]:
    """Return a loss that holds the contract, and measures something under a name."""

    def rename(term: Term, z: Tensor, y: Tensor) -> Term:
        return term._replace(metrics={name: term.loss.detach()} if term.metrics else {})

    return change_loss(rename)


def keep_count(own: Spread, *_: object) -> State:
    return {"count": torch.zeros(2)}


def count_loss(own: Spread, state: State, batch: Batch, measure: bool = True) -> Term:
    """Change the state."""
    state["count"].add_(1)
    return own.plain.loss(state, batch.z, batch.y, measure)


def read_count(own: Any, state: State | None, batches: FeatureBatches, *_: object) -> State:
    """Keep on the loss itself what it needs, where the next client's message does not find it."""
    own.count = sum(len(y) for _, y in batches())
    return {}


def use_count(own: Any, state: State, batch: Batch, measure: bool = True) -> Term:
    return Term(own.plain.loss(state, batch.z, batch.y).loss / own.count, {})


def crash(*_: object) -> Term:
    raise KeyError("centre of class 7")


def fail_late(term: Term, z: Tensor, y: Tensor) -> object:
    """Raise on large features, return a tensor on larger ones."""
    if 5 < z.max() <= 50:
        raise IndexError("too large")
    return term.loss if z.max() > 50 else term


Bare = change_loss(lambda term, z, y: term.loss)
Vector = change_loss(lambda term, z, y: Term(z.square().sum(1), {}))
Undefined = change_loss(lambda term, z, y: Term(z.sum() * torch.nan, {}))
Steep = change_loss(lambda term, z, y: term._replace(loss=term.loss.sqrt()))
Flat = change_loss(lambda term, z, y: term._replace(loss=term.loss.detach()))
Random = change_loss(lambda term, z, y: Term(term.loss * torch.rand(()), {}))
Negative = change_loss(lambda term, z, y: term._replace(loss=term.loss - 9))
Hiding = change_loss(lambda term, z, y: Spread().plain.loss({}, z.nan_to_num(), y, False))
Writing = change_loss(lambda term, z, y: term._replace(loss=term.loss + 0 * y.zero_().sum()))
Shuffling = change_methods(refresh=lambda own, *_: {"order": torch.randperm(5)})
Changing = change_methods(refresh=keep_count, loss=count_loss)
Forgetting = change_methods(refresh=keep_count, update=lambda own, state: None)
Remembering = change_methods(refresh=read_count, loss=use_count)
Crashing, Late = change_loss(crash), change_loss(fail_late)
Counting, Renumbering = name_metric("clipped"), name_metric("num-examples")
Distances, OwnMetric = name_metric("distance-correlation"), name_metric("mine")
OwnSpread = Spread


def build(name: str) -> object:
    return single(options(kind=f"{__name__}:{name}"), 3, 4, 0.3)


BROKEN = {
    "Bare": r"`loss` must return fedcel\.Term\(loss, metrics\); it returned Tensor",
    "Vector": r"whose loss is a scalar; its shape is \(12,\)",
    "Undefined": "the loss of 12 features must be finite, is nan",
    "Negative": r"the loss must be 0 or more, is -\d",
    "Steep": "on a batch of .*gradient of the loss at .* features must be finite",
    "Flat": "must have a gradient at the features; it has none",
    "Random": "the same to the bit each time",
    "Shuffling": "not from torch's global stream",
    "Writing": "left as they are; they were written to",
    "Hiding": "of NaN the loss must not be finite",
    "Changing": "`loss` must leave the state as it is; it changed 'count'",
    "Forgetting": "`update` must return the state, .* it returned NoneType",
    "Counting": "fedcel itself reports a metric clipped; choose another name",
    "Renumbering": "fedcel itself reports a metric num-examples",
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_loss_that_breaks_its_contract_is_refused(name: str) -> None:
    """By setting, import string, the line of the contract, and where to read it."""
    with pytest.raises(PluginError, match=BROKEN[name]) as refusal:
        build(name)
    message = str(refusal.value)
    assert message.startswith(f"cel.kind '{__name__}:{name}' breaks its contract: ")
    assert "docs/how-to/write-own-parts.md" in message
    assert "fedcel.testing.check_cel" in message


@pytest.mark.parametrize(
    ("name", "words"),
    [("Crashing", "KeyError: 'centre of class 7'"), ("Remembering", "AttributeError: .*count")],
)
def test_what_a_loss_raises_is_refused_with_its_line(name: str, words: str) -> None:
    """The file and line are the user's."""
    with pytest.raises(PluginError, match=rf"{name}' failed: {words}.*test_own_losses.py, line \d"):
        build(name)


def test_a_loss_that_holds_the_contract_is_let_through() -> None:
    """And gives the user's own loss and metrics."""
    loss = single(options(kind=f"{__name__}:Spread"), 3, 4, 0.3)
    z = torch.randn(9, 4, generator=torch.Generator().manual_seed(1))
    y = torch.arange(9) % 3
    assert loss is not None
    term, expected = loss.loss({}, z, y), Spread().plain.loss({}, z, y)
    assert term.loss == expected.loss
    assert term.metrics == expected.metrics


@pytest.mark.parametrize(
    ("size", "words"),
    [(10.0, r"failed: IndexError: too large \(.*test_own_losses.py, line"), (100.0, "Term")],
)
def test_a_loss_that_fails_later_is_named(size: float, words: str) -> None:
    """FailedError, of what it raises and of what it returns."""
    loss = single(options(kind=f"{__name__}:Late"), 3, 4, 0.3)
    assert loss is not None
    with pytest.raises(FailedError, match=f"Late' .*{words}"):
        loss.loss({}, torch.full((3, 4), size), torch.zeros(3, dtype=torch.long))


def test_a_moving_threshold_does_not_repeat_the_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client whose server moves the threshold builds its loss anew each round."""
    bound = options(kind=f"{__name__}:Spread", penalty="log").bind(CutShape(3, 5, 0.3))
    made: list[tuple[Any, ...]] = []
    monkeypatch.setattr(Spread, "__init__", lambda self, *arguments: made.append(arguments))
    for threshold in (0.5, 0.25):
        bound.set_threshold(threshold)
    spreads = torch.ones(3)
    for (_, penalty, *_), threshold in zip(made, (0.5, 0.25), strict=True):
        assert torch.equal(penalty(spreads), log_penalty(spreads, threshold))


class Squares(ClientLoss):
    """A defence with a loss that holds its contract."""

    def __init__(self, settings: Settings, shape: tuple[int, ...]) -> None:
        self.size = settings.net.features

    def loss(self, state: State, batch: Batch, measure: bool = True) -> Term:
        return Term(batch.smashed.square().mean(), {})


class Blind(Squares):
    """Looks at the images alone."""

    def loss(self, state: State, batch: Batch, measure: bool = True) -> Term:
        """Return what no feature moves."""
        return Term(batch.x.mean(), {})


class Narrow(Squares):
    """Takes two images at least."""

    def loss(self, state: State, batch: Batch, measure: bool = True) -> Term:
        """Return a variance, which one image has not."""
        gap = batch.smashed - batch.smashed.mean(0)
        return Term(gap.square().sum() / (len(gap) - 1), {})


class Listing(Squares):
    def refresh(
        self, state: State | None, batches: FeatureBatches, generator: torch.Generator
    ) -> State:
        return []  # type: ignore[return-value]


class Former:
    """A loss as version 0.2 took it."""

    refresh = Spread.refresh
    loss = Spread.loss

    def __init__(self, *arguments: object) -> None:
        """Take anything."""

    def step(self, state: State, z: Tensor, y: Tensor) -> State:
        return state


def test_a_loss_of_a_former_version_is_told_what_has_another_name() -> None:
    """What it lacks, and what it has instead."""
    with pytest.raises(PluginError, match=r"lacks refresh, loss or update; `step` is `update\(st"):
        build("Former")


def test_a_defence_is_held_to_its_contract() -> None:
    """Each breach by its line; a sound one is let through."""

    def make(name: str) -> object:
        raw = {"defence.name": f"{__name__}:{name}", "defence.strength": 1.0}
        settings = parse_settings(raw)
        return settings.defence.make_term(CutShape(10, 64, 0.3, image=SHAPE), settings)

    broken = {
        "Blind": "must have a gradient at the features",
        "Narrow": "the loss of 1 features must be finite, is nan",
        "Listing": "`refresh` must return the state, .* it returned list",
    }
    for name, line in broken.items():
        with pytest.raises(PluginError, match=f"defence.name .*:{name}' breaks .*{line}"):
            make(name)
    assert make("Squares") is not None


def test_the_names_that_fedcel_reports_are_reserved() -> None:
    """What a round's step, summary, message and line add to the metrics of the losses."""
    of_messages = {"EXAMPLES", "PARTITION", "ROUND", "STATE_ROUND", "STATE_START", "INCARNATION"}
    names = {getattr(record_names, name) for name in of_messages}
    of_the_round = {*_SUMMARIES, *names, CLIENT_DRIFT, HEAVIEST}
    assert of_the_round | SERVER_METRICS == RESERVED_METRICS
    assert KEPT_SHARE in SERVER_METRICS


@pytest.mark.parametrize(
    ("cel", "defence"),
    [("Distances", "nopeek"), ("plain", "OwnSpread"), ("OwnMetric", "OwnMetric")],
)
def test_two_losses_share_no_metric(cel: str, defence: str) -> None:
    """One would replace the other's number in silence; each by itself is taken."""
    cel, defence = (f"{__name__}:{name}" if name in globals() else name for name in (cel, defence))
    raw = {"cel.kind": cel, "defence.name": defence, "net.noise": 0.3, "chain.scope": "full"}
    with pytest.raises(PluginError, match=r"both report the metric [-\w]+, .* rename it"):
        build_parts(parse_settings(raw))
    for other in ({"cel.kind": "none"}, {"defence.name": "none"}):
        build_parts(parse_settings(raw, other))


def test_losses_of_the_project_share_no_metric() -> None:
    """And none has a reserved name."""
    of_losses = {name for kind in CEL.kinds.values() for name in kind.metric_ranges}
    of_defences = {name for kind in Rival.kinds.values() for name in kind.metric_ranges}
    assert not of_losses & of_defences
    assert not (of_losses | of_defences) & RESERVED_METRICS
