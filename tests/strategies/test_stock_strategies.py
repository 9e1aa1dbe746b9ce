"""Flower's own parts beside ours: stock strategies, plain NumPyClients, the legacy API.

All but one without Ray, by the same code of ServerApp and ClientApp; see
`sims.engines.simulated_grid`.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Context
from flwr.client import Client
from flwr.clientapp import ClientApp
from flwr.common import ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server import ServerApp, ServerAppComponents, ServerConfig
from flwr.server.strategy import FedAvg as LegacyFedAvg
from flwr.serverapp import strategy

from clients import PosteriorClient
from fedcel.data import load_splits
from fedcel.errors import RoundError, SettingsError
from fedcel.federation import record_names
from fedcel.files import read_tensors
from fedcel.nets.flat_net import to_arrays, to_vector
from fedcel.run_parts import (
    build_workspace_net,
    init_net,
    select_client_images,
)
from fedcel.runs import run_folder
from fedcel.settings import Settings, parse_settings
from sims.engines import local
from sims.engines.simulated_grid import InMemoryGrid
from tests.strategies.federation import Events, fail_at, train_nodes
from tests.strategies.stock_matrix import REFUSED, STOCK, is_repeatable, settings_of

EXAMPLE = Path(__file__).parents[2] / "examples" / "own-parts"
NODES = 4
SHORT: dict[str, Any] = {**STOCK, "clients": NODES}


def train(folder: Path, settings: Settings) -> torch.Tensor:
    """Return the model after a run of our clients, not measured."""
    run_folder.create_run(folder, settings)
    local.train_locally(settings, folder, lambda event: None, measure=False)
    return read_tensors(folder / "model.safetensors")[0]["model"]


def begun(settings: Settings) -> torch.Tensor:
    """Return the model of round 0."""
    return init_net(settings, load_splits(settings.data, settings.clients, settings.seed)).vector


@pytest.mark.parametrize("name", strategy.__all__)
def test_every_strategy_of_flower_trains_our_clients_twice_alike_or_is_refused(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Twice with one seed and drawn clients: the same bits, unless the run says that it may not."""
    settings = parse_settings(settings_of(name) | {"clients": 9, "clients-per-round": 7})
    if name in REFUSED:
        with pytest.raises(SettingsError, match=REFUSED[name]):
            train(tmp_path / "run", settings)
        return
    first, second = (train(tmp_path / run, settings) for run in ("first", "second"))
    assert first.isfinite().all()
    assert (first - begun(settings)).abs().max() > 1e-4
    assert is_repeatable(name) == torch.equal(first, second)
    assert is_repeatable(name) == ("The same seed may give another model" not in caplog.text)
    assert len((tmp_path / "first" / "events.jsonl").read_text().splitlines()) == 2


def test_a_stock_strategys_round_counts_who_trained_and_names_who_did_not(tmp_path: Path) -> None:
    """Flower leaves errors out in silence; a round in which nobody trained is none."""
    settings = parse_settings(SHORT)

    def train_some(folder: str, failing: set[int]) -> Events:
        grid = InMemoryGrid(fail_at(settings, failing), NODES)
        return train_nodes(tmp_path / folder, settings, grid)[1]

    for event in train_some("some", {1, 2}):
        assert event["clients"] == 2
        assert len(event["rejected"]) == 2
        assert all("no images" in rejection["reason"] for rejection in event["rejected"])
        assert [rejection["client"] for rejection in event["rejected"]] == [1, 2]
    assert train_some("all", set())[1]["rejected"] == []
    with pytest.raises(RoundError, match="no node trained in round 1; .*no images"):
        train_some("none", {0, 1, 2, 3})


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the example's plain NumPyClient, its ClientApp, and how a node makes a client."""
    monkeypatch.syspath_prepend(str(EXAMPLE))
    from own_parts import flower

    def client_fn(context: Context) -> Any:
        settings = parse_settings({"clients": NODES})
        net = init_net(settings, load_splits(settings.data, NODES, 0)).net
        images = select_client_images(settings, flower.read_partition(context))
        return flower.SGDClient(torch.nn.Sequential(net.encoder, net.head), *images)

    return flower, client_fn


def averaged(client_fn: Any, arrays: list[Any]) -> torch.Tensor:
    """Return what one round of federated averaging makes of these arrays, by hand."""
    app = ClientApp()
    results = [
        client_fn(context).fit([a.copy() for a in arrays], {})
        for context in InMemoryGrid(app, NODES).contexts.values()
    ]
    total = sum(examples for _, examples, _ in results)
    return sum(to_vector(sent) * (examples / total) for sent, examples, _ in results)


def test_our_strategy_trains_plain_numpy_clients(tmp_path: Path, plain: Any) -> None:
    """Weights in, weights out, nothing of ours in the client: a round is federated averaging."""
    flower, client_fn = plain
    settings = parse_settings({**dict.fromkeys(["temperature", "strategy.momentum"], 0.0),
    "clients": NODES,
                      "rounds": 1, "chain.burn-in": 1.0, "engine": "local"})  # fmt: skip
    folder, first = tmp_path / "run", begun(settings)
    grid = InMemoryGrid(flower.make_client_app(client_fn), NODES)
    trained, events = train_nodes(folder, settings, grid)
    shapes = build_workspace_net(settings).shapes
    want = averaged(client_fn, to_arrays(first, shapes))
    torch.testing.assert_close(trained, want, rtol=0, atol=1e-6)
    assert (trained - first).abs().max() > 1e-3
    assert events[0]["rejected"] == []


@pytest.mark.long
def test_our_numpy_client_trains_under_the_legacy_api_on_ray(tmp_path: Path) -> None:
    """`ClientApp(client_fn=...)`, a legacy strategy: the model of the new FedAvg."""
    from flwr.simulation import run_simulation  # two seconds that all other tests spare

    settings, last = parse_settings(SHORT), {}
    shapes = build_workspace_net(settings).shapes
    arrays = to_arrays(begun(settings), shapes)

    def client_fn(context: Context) -> Client:
        return PosteriorClient(settings, int(context.node_config["partition-id"])).to_client()

    def keep(number: int, found: list[Any], config: Any) -> None:
        last[number] = [np.array(array) for array in found]

    def server_fn(context: Context) -> ServerAppComponents:
        legacy_fedavg = LegacyFedAvg(
            fraction_evaluate=0.0,
            min_fit_clients=NODES,
            min_available_clients=NODES,
            initial_parameters=ndarrays_to_parameters(arrays),
            on_fit_config_fn=lambda number: {record_names.ROUND: number},
            evaluate_fn=keep,
        )
        return ServerAppComponents(strategy=legacy_fedavg, config=ServerConfig(num_rounds=2))

    run_simulation(
        ServerApp(server_fn=server_fn),
        ClientApp(client_fn=client_fn),
        NODES,
        backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
    )
    ours = train(tmp_path / "run", settings)
    assert parameters_to_ndarrays(ndarrays_to_parameters(arrays))[0].shape == shapes[0]
    torch.testing.assert_close(to_vector(last[2]), ours, rtol=0, atol=1e-6)
