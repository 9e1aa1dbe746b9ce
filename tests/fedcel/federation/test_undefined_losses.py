"""A loss that is not finite is named, whoever wrote it; features that ran away blame no loss."""

from typing import Any

import pytest
import torch
from torch import Tensor

from fedcel.errors import DivergedError, FailedError
from fedcel.federation import ClientUpdate
from fedcel.losses import Batch, ClientLoss
from fedcel.losses.cel import Plain, PlainCEL, State, Term
from fedcel.losses.defences import NoPeek
from fedcel.run_parts import build_terms
from fedcel.settings import parse_settings
from tests.fedcel.train_one import update_one

RAW: dict[str, Any] = {
    "clients": 2,
    "rounds": 10,
    "local.steps": 3,
    "temperature": 0.0,
    "cel.warm-up": 0,
    "cel.ramp": 0.1,
    "cel.weight": 0.1,
}


def update(state: State | None = None, **raw: Any) -> ClientUpdate:
    """Return what client 1 makes of round 3."""
    settings = parse_settings(RAW | raw)
    build_terms.cache_clear()
    return update_one(settings, 1, 0.5, number=3, total=997, state=state)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_built_in_loss_that_is_not_finite_is_named(
    value: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With round and client, and what to lower; not the learning rate alone."""
    monkeypatch.setattr(
        Plain, "loss", lambda self, state, batch, measure: Term(value * batch.z.mean((1, 2)), {})
    )
    words = r"round 3, client 1: cel.kind 'plain' gave a loss that is not finite .* or cel.weight"
    with pytest.raises(DivergedError, match=words):
        update(**{"cel.kind": "plain"})


def test_a_gradient_that_is_not_finite_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a root at 0: the loss itself is finite."""
    monkeypatch.setattr(
        Plain,
        "loss",
        lambda self, state, batch, measure: Term((batch.z - batch.z).sum((1, 2)).sqrt(), {}),
    )
    with pytest.raises(DivergedError, match="'plain' gave a finite loss whose gradient is not"):
        update(**{"cel.kind": "plain"})


def test_a_defence_that_is_not_finite_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside a conditional entropy loss that is."""
    monkeypatch.setattr(
        NoPeek,
        "loss",
        lambda self, state, batch, measure: Term(torch.nan * batch.z.mean((1, 2)), {}),
    )
    words = "defence.name 'nopeek' gave a loss that is not finite .nan.*or defence.strength"
    with pytest.raises(DivergedError, match=words):
        update(**{"cel.kind": "plain", "defence.name": "nopeek", "defence.strength": 0.1})


def test_parameters_that_ran_away_blame_no_loss() -> None:
    """The rate is to blame where features are not finite before the loss sees them."""
    delta = update(**{"cel.kind": "plain", "local.rate": 1e38}).delta
    assert not delta.isfinite().all()


class Spread(ClientLoss):
    """A loss of a user's own that fails when told to."""

    fails = False

    def __init__(self, *arguments: object) -> None:
        self.plain = PlainCEL(classes=10, penalty="linear")

    def loss(self, state: State, batch: Batch, measure: bool = True) -> Term:
        if self.fails:
            raise LookupError("no centre")
        return Term(self.plain(batch.z, batch.y), {})


def test_an_own_loss_that_fails_in_training_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """With round, client, and the user's file and line."""
    kind = {"cel.kind": f"{__name__}:Spread"}
    assert update(**kind).delta.isfinite().all()
    monkeypatch.setattr(Spread, "fails", True)
    words = r"round 3, client 1: cel.kind .*:Spread' failed: LookupError: no centre \(.*undefined_"
    with pytest.raises(FailedError, match=words):
        update(**kind)


def test_what_an_own_net_raises_in_training_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is no method of a loss, but the line is the user's."""
    name = {"net.name": "tests.fedcel.nets.test_net_contract:sound"}
    from tests.fedcel.nets import test_net_contract

    assert update(**name).delta.isfinite().all()

    def fail(self: object, images: Tensor) -> Tensor:
        return test_net_contract.fail(images)

    monkeypatch.setattr("fedcel.nets.FlatNet.encode", fail)
    with pytest.raises(FailedError, match="net.name .*:sound' failed: KeyError: 'layer seven'"):
        update(**name)


def test_finite_rounds_are_played_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step asks for the loss once: the second look is for rounds that failed."""
    calls: list[int] = []
    loss = Plain.loss

    def count(self: Plain, state: State, batch: Batch, measure: bool) -> Term:
        calls.append(1)
        return loss(self, state, batch, measure)

    monkeypatch.setattr(Plain, "loss", count)
    update(**{"cel.kind": "plain"})
    assert len(calls) == RAW["local.steps"]


def test_a_failed_round_is_looked_at_with_the_same_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loss that fails at the features of one step alone is met there again, and named."""
    sums: list[float] = []

    def fail_at_third(self: Plain, state: State, batch: Batch, measure: bool) -> Term:
        z = batch.z
        total = float(z.detach().sum())
        if len(sums) < RAW["local.steps"]:
            sums.append(total)
        is_third = len(sums) == RAW["local.steps"] and total == sums[-1]
        return Term((torch.nan if is_third else 0.0) * z.mean((1, 2)), {})

    monkeypatch.setattr(Plain, "loss", fail_at_third)
    with pytest.raises(DivergedError, match="cel.kind 'plain' gave a loss that is not finite"):
        update(
            **{"cel.kind": "plain", "temperature": 1.0, "chain.burn-in": 0.2, "chain.scope": "full"}
        )
