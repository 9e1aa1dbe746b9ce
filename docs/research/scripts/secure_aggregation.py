"""Flower's SecAgg+ with this project's clients: `secure_aggregation.py`.

Four clients train on digits for a round. The first case is Flower's legacy server with its workflow
and mod; a handler of Flower's current kind translates to `PosteriorClient`. The second is the
current server, FedAvg, with the same mod. Writes docs/results/secure-aggregation.json.
"""

import argparse
import logging
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import flwr.compat.common.recorddict_compat as compat
import numpy as np
from flwr.app import ArrayRecord, Context, Message
from flwr.client.mod import secaggplus_mod
from flwr.clientapp import ClientApp
from flwr.common import (
    Code,
    FitRes,
    NDArrays,
    Scalar,
    Status,
    ndarrays_to_parameters,
    parameters_to_ndarrays,
)
from flwr.server import LegacyContext, ServerConfig
from flwr.server.strategy import FedAvg as LegacyFedAvg
from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from clients import PosteriorClient, make_client_app
from fedcel.data import load_splits
from fedcel.files import write_json
from fedcel.nets import to_arrays
from fedcel.run_parts import init_net
from fedcel.settings import parse_settings

CLIENTS = 4
S = parse_settings(
    {
        "clients": CLIENTS,
        "rounds": 4,
        "local.steps": 5,
        "temperature": 0.0,
        "chain.scope": "full",
        "strategy.name": "flwr.serverapp.strategy:FedAvg",
        "strategy.upload": "weights",
    }
)
BACKEND: Any = {
    "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
    "init_args": {"num_cpus": 2},
}


def initial_arrays() -> NDArrays:
    """Return the model of round 0."""
    flat = init_net(S, load_splits(S.data, S.clients, S.seed))
    return to_arrays(flat.vector, flat.shapes)


def translate() -> ClientApp:
    """Return an app that hands the legacy server's messages to our client."""
    app = ClientApp(mods=[secaggplus_mod])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        request = compat.recorddict_to_fitins(message.content, keep_input=True)
        client = PosteriorClient(S, int(context.node_config["partition-id"]))
        config: dict[str, Scalar] = {"server-round": int(request.config["server-round"])}
        model, examples, _ = client.fit(parameters_to_ndarrays(request.parameters), config)
        reply = FitRes(Status(Code.OK, ""), ndarrays_to_parameters(model), examples, {})
        return Message(compat.fitres_to_recorddict(reply, keep_input=False), reply_to=message)

    return app


def run_legacy() -> tuple[NDArrays | None, str]:
    """Return the model after a round of the legacy workflow."""
    models: list[NDArrays] = []

    class Keeping(LegacyFedAvg):
        def aggregate_fit(self, server_round, results, failures):  # type: ignore[no-untyped-def]
            parameters, metrics = super().aggregate_fit(server_round, results, failures)
            if parameters is not None:
                models.append(parameters_to_ndarrays(parameters))
            return parameters, metrics

    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        strategy = Keeping(
            fraction_evaluate=0.0,
            min_fit_clients=CLIENTS,
            min_available_clients=CLIENTS,
            initial_parameters=ndarrays_to_parameters(initial_arrays()),
            on_fit_config_fn=lambda number: {"server-round": number},
        )
        legacy = LegacyContext(context, ServerConfig(num_rounds=1), strategy)
        DefaultWorkflow(SecAggPlusWorkflow(3, 2, max_weight=1000.0))(grid, legacy)

    run_simulation(server, translate(), CLIENTS, backend_config=BACKEND)
    return models[-1], ""


def run_current() -> tuple[NDArrays | None, str]:
    """Return the model after a round of the current server, and the first error of a client."""
    ours, models = make_client_app(S), []
    errors: list[str] = []
    app = ClientApp(mods=[secaggplus_mod])
    app.train()(lambda message, context: ours(message, context))
    server = ServerApp()

    class Reading(FedAvg):
        def aggregate_train(self, server_round, replies):  # type: ignore[no-untyped-def]
            received = list(replies)
            errors.extend(reply.error.reason for reply in received if reply.has_error())
            return super().aggregate_train(server_round, received)

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        strategy = Reading(fraction_evaluate=0.0, min_train_nodes=CLIENTS)
        result = strategy.start(grid, ArrayRecord(initial_arrays()), num_rounds=1)
        models.append(result.arrays.to_numpy_ndarrays())

    run_simulation(server, app, CLIENTS, backend_config=BACKEND)
    return models[-1] or None, errors[0].strip().splitlines()[-1] if errors else ""


def average_plainly() -> NDArrays:
    """Return the weighted mean of the clients' models, computed here."""
    start = initial_arrays()
    replies = [
        PosteriorClient(S, client).fit([array.copy() for array in start], {"server-round": 1})
        for client in range(CLIENTS)
    ]
    total = sum(examples for _, examples, _ in replies)
    return [
        np.sum([examples / total * model[layer] for model, examples, _ in replies], axis=0)
        for layer in range(len(start))
    ]


def main() -> None:
    """Run both cases, write what came of them."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--out", type=Path, default=Path("docs/results/secure-aggregation.json"))
    given = options.parse_args()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    plain, start = average_plainly(), initial_arrays()
    cases: dict[str, Callable[[], tuple[NDArrays | None, str]]] = {
        "legacy server, SecAggPlusWorkflow": run_legacy,
        "current server, FedAvg": run_current,
    }
    rows = []
    for case, run in cases.items():
        model, error = run()
        rows.append(
            {
                "case": case,
                "flwr": version("flwr"),
                "clients": CLIENTS,
                "largest-error": None if model is None else largest_gap(model, plain),
                "largest-change": largest_gap(plain, start),
                "client-error": error,
                "command": "python docs/research/scripts/secure_aggregation.py",
            }
        )
        print(rows[-1])
    write_json(given.out, rows)


def largest_gap(one: NDArrays, other: NDArrays) -> float:
    """Return the largest difference of a parameter."""
    return max(float(np.abs(a - b).max()) for a, b in zip(one, other, strict=True))


if __name__ == "__main__":
    main()
