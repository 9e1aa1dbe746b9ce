"""Steps without noise draw none, and rounds without a loss compute nothing of it."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

from fedcel.federation import RoundRequest, RoundTrainer, round_trainer
from fedcel.losses.cel import Cluster, Gated, Hybrid, MutualInformation, Plain
from fedcel.posterior import RoundOrder
from fedcel.run_parts import build_client_parts, build_workspace_net
from fedcel.settings import Settings, parse_settings

BASE = {
    "clients": 4,
    "rounds": 10,
    "local.steps": 3,
    "net.width": 16,
    "net.features": 8,
    "temperature": 0.0,
    "cel.penalty": "linear",
    "cel.warm-up": 2,
    "cel.ramp": 0.2,
    "chain.burn-in": 0.8,
}
KINDS = {"plain": Plain, "cluster": Cluster, "gated": Gated, "hybrid": Hybrid}
KINDS |= {"mutual-information": MutualInformation}
LOSS_STEPS = ("refresh", "loss", "update")
NOISE = ("cut", "langevin")
Train = Callable[[Settings, int], None]


def train_clients(settings: Settings, number: int, at_once: int) -> None:
    model = build_workspace_net(settings).vector.clone()
    weights = dict.fromkeys(range(settings.clients), 0.25)
    parts = build_client_parts(settings)
    request = RoundRequest(parts.schedule.plan(RoundOrder(number, 1000)), model, weights)
    list(RoundTrainer(parts, request, at_once=at_once, report_obstacle=pytest.fail).train())


WAYS = pytest.mark.parametrize(
    "train",
    [partial(train_clients, at_once=1), partial(train_clients, at_once=4)],
    ids=["one by one", "at once"],
)


def list_drawn(
    train: Train, settings: Settings, number: int, monkeypatch: pytest.MonkeyPatch
) -> set[str]:
    """Train a round; return the purposes whose random streams were drawn from."""
    streams: list[tuple[str, torch.Generator, torch.Tensor]] = []
    make = round_trainer.make_generator

    def record(seed: int, purpose: str, *rest: int) -> torch.Generator:
        generator = make(seed, purpose, *rest)
        streams.append((purpose, generator, generator.get_state()))
        return generator

    build_workspace_net(settings)
    with monkeypatch.context() as patch:
        patch.setattr(round_trainer, "make_generator", record)
        train(settings, number)
    return {
        purpose for purpose, stream, start in streams if not torch.equal(stream.get_state(), start)
    }


@WAYS
@pytest.mark.filterwarnings("ignore:net.noise is 0")
@pytest.mark.parametrize("kind", ["none", "plain", "cluster"])
def test_without_noise_no_noise_is_drawn(
    train: Train, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither at the cut nor for Langevin steps; of batches it is, so the streams are watched."""
    settings = parse_settings(BASE, {"cel.kind": kind, "net.noise": 0.0})
    drawn = list_drawn(train, settings, 5, monkeypatch)
    assert "batch" in drawn
    assert drawn.isdisjoint(NOISE)


@WAYS
def test_with_noise_it_is_drawn(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the cut in every round, of a Langevin step in sampling rounds alone."""
    settings = parse_settings(BASE, {"cel.kind": "none", "temperature": 1.0})
    assert set(NOISE) & list_drawn(train, settings, 5, monkeypatch) == {"cut"}
    assert set(NOISE) <= list_drawn(train, settings, 9, monkeypatch)


def count_calls(
    train: Train, settings: Settings, number: int, monkeypatch: pytest.MonkeyPatch
) -> int:
    """Train a round; return how often any method of the settings' loss is called."""
    calls = 0
    kind: Any = KINDS[settings.cel.kind]
    with monkeypatch.context() as patch:
        for name in LOSS_STEPS:
            method = getattr(kind, name, None)
            if method is None:
                continue

            def count(self: Any, *args: Any, method: Any = method) -> Any:
                nonlocal calls
                calls += 1
                return method(self, *args)

            patch.setattr(kind, name, count)
        train(settings, number)
    return calls


@WAYS
@pytest.mark.parametrize("kind", KINDS)
def test_a_loss_that_does_not_act_computes_nothing(
    train: Train, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In warm-up, on a frozen encoder, and at weight 0: no statistics, no value, no step."""
    settings = parse_settings(BASE, {"cel.kind": kind})
    weightless = parse_settings(BASE, {"cel.kind": kind, "cel.weight": 0.0})
    assert count_calls(train, settings, 2, monkeypatch) == 0
    assert count_calls(train, settings, 9, monkeypatch) == 0
    assert count_calls(train, weightless, 5, monkeypatch) == 0
    assert count_calls(train, settings, 5, monkeypatch) > 0
