"""The rounds of stock strategies: repeatable on every grid, and nothing skipped in silence."""

import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAvg,
    Strategy,
)

from clients import make_client_app
from fedcel.data import load_splits
from fedcel.errors import RoundError, SettingsError
from fedcel.federation import record_names
from fedcel.files import read_json
from fedcel.run_parts import build_server_parts, init_net
from fedcel.settings import Settings, parse_settings
from sims.engines.simulate import simulate
from sims.engines.simulated_grid import InMemoryGrid
from tests.fedcel.federation import test_frozen_parameters
from tests.strategies.federation import fail_at, read_events, train_nodes
from tests.strategies.stock_matrix import STOCK

DRAWN = {"clients-per-round": 3}
SERVER_DP, CLIENT_DP = (
    f"flwr.serverapp.strategy:DifferentialPrivacy{side}SideFixedClipping"
    for side in ("Server", "Client")
)


class Recording(FedAvg):
    """Notes which partitions reply, in the order in which it is given them, and how far they go."""

    partitions: ClassVar[list[list[int]]] = []
    norms: ClassVar[list[float]] = []

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.partitions.clear()
        self.norms.clear()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        self.model = np.concatenate([a.ravel() for a in arrays.to_numpy_ndarrays()])
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        replies = list(replies)
        contents = [reply.content for reply in replies if not reply.has_error()]
        self.partitions.append([int(c["metrics"][record_names.PARTITION]) for c in contents])
        for content in contents:
            update = np.concatenate([a.ravel() for a in content["arrays"].to_numpy_ndarrays()])
            self.norms.append(float(np.linalg.norm(update - self.model)))
        return super().aggregate_train(server_round, replies)


class Picking(FedAvg):
    """Draws clients from a generator of its own."""

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        nodes = random.Random().sample(list(grid.get_node_ids()), 3)
        config[record_names.ROUND] = server_round
        content = RecordDict({"arrays": arrays, "config": config})
        return [Message(content, dst_node_id=node, message_type="train") for node in nodes]


class Answering(FedAvg):
    """Returns an answer of its own for a round."""

    answer: ClassVar[Any] = None

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        return self.answer


def clip_at_clients(settings: Settings, min_available_nodes: int) -> Strategy:
    """Return client-side clipping to .01 by a function, as a user would."""
    inner = Recording(fraction_evaluate=0.0, min_available_nodes=min_available_nodes)
    return DifferentialPrivacyClientSideFixedClipping(inner, 0.0, 0.01, settings.clients)


def clip_adaptively(settings: Settings, min_available_nodes: int) -> Strategy:
    """Return client-side clipping that moves the norm."""
    inner = Recording(fraction_evaluate=0.0, min_available_nodes=min_available_nodes)
    return DifferentialPrivacyClientSideAdaptiveClipping(
        inner, 0.0, settings.clients, initial_clipping_norm=0.01
    )


def protect_at_server(settings: Settings, min_available_nodes: int) -> Strategy:
    """Return server-side clipping, which leaves a round out whole where a reply is an error."""
    inner = FedAvg(fraction_evaluate=0.0, min_available_nodes=min_available_nodes)
    return DifferentialPrivacyServerSideFixedClipping(inner, 0.0, 1.0, settings.clients)


class ShuffledGrid(InMemoryGrid):
    """As a simulation of Flower's: random node ids, listed and answering in random order."""

    def __init__(self, app: ClientApp, nodes: int) -> None:
        super().__init__(app, nodes)
        self.generator = random.Random()
        contexts = list(self.contexts.values())
        self.contexts = {self.generator.getrandbits(60): context for context in contexts}

    def get_node_ids(self) -> Iterable[int]:
        return self.generator.sample(list(self.contexts), len(self.contexts))

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        replies = list(super().send_and_receive(messages, timeout=timeout))
        return self.generator.sample(replies, len(replies))


class LosingGrid(InMemoryGrid):
    """Loses a node once the first round was sent."""

    def get_node_ids(self) -> Iterable[int]:
        return list(self.contexts)[: None if self._sent <= len(self.contexts) else -1]


def train(
    folder: Path, app: ClientApp | None = None, grid: type[InMemoryGrid] = InMemoryGrid, **raw: Any
) -> torch.Tensor:
    """Return the model after a small run over a grid, not measured."""
    settings = parse_settings(STOCK | raw)
    nodes = grid(app or make_client_app(settings), settings.clients)
    return train_nodes(folder, settings, nodes)[0]


def record_draws(folder: Path, **raw: Any) -> list[list[int]]:
    """Return who trained in each round of a run, in the order of aggregation."""
    train(folder, **{"strategy.name": f"{__name__}:Recording", "rounds": 4, **DRAWN, **raw})
    return [list(partitions) for partitions in Recording.partitions]


@pytest.mark.parametrize("name", ["FedAvg", "FedAdam", "FedMedian"])
def test_neither_node_ids_nor_the_order_of_arrival_change_a_bit(tmp_path: Path, name: str) -> None:
    """Random ids and shuffled replies, as on Ray, give the model of the local engine."""
    raw = {"strategy.name": f"flwr.serverapp.strategy:{name}", "clients-per-round": 5}
    local = train(tmp_path / "local", **raw)
    for number in range(2):
        shuffled = train(tmp_path / f"shuffled-{number}", grid=ShuffledGrid, **raw)
        assert torch.equal(local, shuffled)


def test_it_draws_the_clients_of_the_posterior_strategy(tmp_path: Path) -> None:
    """One draw for all: by seed and round."""
    settings = parse_settings(STOCK | DRAWN)
    drawn = record_draws(tmp_path / "run")
    assert drawn == [build_server_parts(settings).select(number) for number in range(1, 5)]


def test_a_run_that_may_not_repeat_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """In the log and in result.json, where the aggregation draws noise; else nothing is said."""
    noisy = {"strategy.name": SERVER_DP, "strategy.arguments": "noise_multiplier=1,clipping_norm=1"}
    results: list[Any] = []
    for name, raw in (("noisy", noisy), ("plain", {})):
        simulate(parse_settings({**STOCK, **raw, "rounds": 1}), tmp_path / name)
        results.append(read_json(tmp_path / name / "result.json"))
    reason = "DifferentialPrivacyServerSideFixedClipping: it draws random numbers while it aggrega"
    assert results[0]["unrepeatable"].startswith(reason) and "unrepeatable" not in results[1]
    assert caplog.text.count("The same seed may give another model") == 1


@pytest.mark.parametrize("raw", [{}, DRAWN | {"clients-per-round": 5}])
def test_a_draw_of_its_own_is_refused(tmp_path: Path, raw: dict[str, Any]) -> None:
    """Who trains is decided by clients-per-round; the first round shows it."""
    with pytest.raises(SettingsError, match=r"train in round 1, and .*Picking asks 3; let it ask"):
        train(tmp_path / "run", **{"strategy.name": f"{__name__}:Picking"}, **raw)


MODEL = [np.zeros(shape, np.float32) for shape in [(16, 64), (16,), (8, 16)]]


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (None, r".aggregate_train must return \(arrays, metrics\), returned NoneType"),
        ((MODEL, None), ".aggregate_train must return an ArrayRecord, returned list"),
        ((ArrayRecord(MODEL), None), ".aggregate_train must return the .* arrays .*returned 3, of"),
        ((None, None), " made no model of the round 1, which has 8 valid"),
    ],
)
def test_a_round_that_gives_no_model_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: Any, words: str
) -> None:
    """By the name of the class; with nothing, Flower would go on with the first model."""
    monkeypatch.setattr(Answering, "answer", answer)
    with pytest.raises(RoundError, match=f"Answering{words}"):
        train(tmp_path / "run", **{"strategy.name": f"{__name__}:Answering"})


def test_a_model_that_is_not_finite_is_an_error(tmp_path: Path) -> None:
    """With both remedies: the training ran away, or the strategy combines wrongly."""
    words = r"FedAdam.aggregate_train returned a model that is not finite; lower local.rate, or"
    raw = {"strategy.name": "flwr.serverapp.strategy:FedAdam", "strategy.arguments": "eta=1e300"}
    with pytest.raises(RoundError, match=words):
        train(tmp_path / "run", **raw)


@pytest.mark.parametrize("name", ["clip_at_clients", "clip_adaptively"])
def test_client_side_clipping_clips(tmp_path: Path, name: str) -> None:
    """No update is longer than the norm that the round began with; without, each is."""
    train(tmp_path / "free", **{"strategy.name": f"{__name__}:Recording", "rounds": 1})
    assert min(Recording.norms) > 0.1
    train(tmp_path / "clipped", **{"strategy.name": f"{__name__}:{name}", "rounds": 1})
    np.testing.assert_allclose(Recording.norms, 0.01, rtol=1e-3)


def test_a_round_that_a_strategy_leaves_out_whole_is_recorded(tmp_path: Path) -> None:
    """Flower's wrappers take no round with an error in it; the model stays, the run goes on."""
    raw = {
        "strategy.name": f"{__name__}:protect_at_server",
        "rounds": 3,
        "strategy.least-share": 0.0,
    }
    app = fail_at(parse_settings(STOCK | raw), {2}, 2)
    train(tmp_path / "run", app, **raw)
    first, second, third = read_events(tmp_path / "run")
    assert (first["clients"], second["clients"], third["clients"]) == (8, 0, 8)
    reasons = {one["client"]: one["reason"] for one in second["rejected"]}
    assert sorted(reasons) == list(range(8)) and "no images" in reasons[2]
    assert reasons[0] == "DifferentialPrivacyServerSideFixedClipping made no model of the round"
    assert first["nll"] == pytest.approx(second["nll"], abs=0.05) and first["rejected"] == []


def test_a_node_that_stays_away_is_waited_for_no_longer_than_a_round_may_last(
    tmp_path: Path,
) -> None:
    """Flower waits for ever for as many nodes as train in a round."""
    with pytest.raises(RoundError, match=r"round 2 waited 0.5 s for nodes .strategy.timeout."):
        train(tmp_path / "run", grid=LosingGrid, **{"strategy.timeout": 0.5})
    assert len(read_events(tmp_path / "run")) == 1


def test_fedprox_pulls_its_clients(tmp_path: Path) -> None:
    """Clients read the pull from its messages; without one it is FedAvg to the bit."""
    name = {"strategy.name": "flwr.serverapp.strategy:FedProx"}
    plain = train(tmp_path / "plain")
    free, pulled = (
        train(tmp_path / mu, **name, **{"strategy.arguments": f"proximal_mu={mu}"})
        for mu in ("0", "0.5")
    )
    assert torch.equal(plain, free) and not torch.equal(plain, pulled)


def test_what_is_frozen_stays_whatever_a_strategy_adds(tmp_path: Path) -> None:
    """Noise of the server's, and the rounding of a mean of equal weights."""
    noise = {"strategy.name": SERVER_DP, "strategy.arguments": "noise_multiplier=1,clipping_norm=1"}
    change = {"net.name": f"{test_frozen_parameters.__name__}:make_net", **noise}
    model = train(tmp_path / "run", **change)
    settings = parse_settings(STOCK | change)
    splits = load_splits(settings.data, settings.clients, settings.seed)
    moved = torch.ne(model, init_net(settings, splits).vector)
    assert not moved[: test_frozen_parameters.FROZEN].any()
    assert moved[test_frozen_parameters.FROZEN :].all()
