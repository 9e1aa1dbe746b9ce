"""All strategies of the installed Flower: with which settings each trains, or why it does not."""

import hashlib
import json
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp, strategy

from fedcel.errors import FedcelError
from fedcel.files import read_tensors
from fedcel.runs import run_folder
from fedcel.settings import parse_settings
from strategies.server_app import train_over_grid

FEDAVG: dict[str, Any] = {
    "temperature": 0.0,
    "prior.mode": "none",
    "strategy.momentum": 0.0,
    "strategy.upload": "weights",
    "strategy.name": "flwr.serverapp.strategy:FedAvg",
    "chain.scope": "full",
}
"""Federated averaging of weights."""
STOCK: dict[str, Any] = {
    "engine": "local",
    "clients": 8,
    "rounds": 2,
    "local.steps": 4,
    "net.width": 16,
    "net.features": 8,
    **FEDAVG,
}
"""A small run of it."""
ARGUMENTS = {
    "DifferentialPrivacyClientSideAdaptiveClipping": "noise_multiplier=0.01",
    "DifferentialPrivacyClientSideFixedClipping": "noise_multiplier=0.01,clipping_norm=1",
    "DifferentialPrivacyServerSideAdaptiveClipping": "noise_multiplier=0.01",
    "DifferentialPrivacyServerSideFixedClipping": "noise_multiplier=0.01,clipping_norm=1",
    "FedAvgM": "server_momentum=0.9",
    "FedProx": "proximal_mu=0.1",
    "Krum": "num_malicious_nodes=1",
    "MultiKrum": "num_malicious_nodes=1,num_nodes_to_select=6",
    "Bulyan": "num_malicious_nodes=1",
}
"""`strategy.arguments` of those that cannot be made, or are FedAvg, without."""
REFUSED = {
    "FedXgbBagging": "combines trees of XGBoost",
    "FedXgbCyclic": "combines trees of XGBoost",
    "Result": "is no Flower Strategy",
    "Strategy": "is no Flower Strategy, or is abstract",
}
"""Why a name of Flower's trains nothing."""


def settings_of(name: str) -> dict[str, Any]:
    """Return the settings of a small run under this strategy."""
    return {
        **STOCK,
        "strategy.name": f"flwr.serverapp.strategy:{name}",
        "strategy.arguments": ARGUMENTS.get(name, "none"),
    }


def is_repeatable(name: str) -> bool:
    """Say whether the same seed gives the same model: not where noise is added to it."""
    return not name.startswith("DifferentialPrivacy")


def train_all(grid: Grid, folder: Path, **change: Any) -> dict[str, str]:
    """Return of each name of Flower's the model that it trains, as a digest, or why it does not."""
    outcomes = {}
    for name in strategy.__all__:
        settings = parse_settings({**settings_of(name), **change})
        run_folder.create_run(folder / name, settings)
        try:
            train_over_grid(grid, settings, folder / name, lambda event: None, measure=False)
        except FedcelError as error:
            outcomes[name] = str(error)
            continue
        model = read_tensors(folder / name / "model.safetensors")[0]["model"]
        outcomes[name] = hashlib.sha256(model.numpy().tobytes()).hexdigest()[:16]
    return outcomes


def list_differences(outcomes: dict[str, str], local: dict[str, str]) -> list[str]:
    """Return the names that neither end as on the local engine nor may end otherwise."""
    return [
        name
        for name in strategy.__all__
        if outcomes[name] != local[name] and (name in REFUSED or is_repeatable(name))
    ]


def print_outcomes(outcomes: dict[str, str]) -> None:
    """Print a row a name: its arguments, what came of it, whether that repeats."""
    for name, outcome in outcomes.items():
        repeats = "-" if name in REFUSED else "yes" if is_repeatable(name) else "no"
        print(f"| {name} | {ARGUMENTS.get(name, '')} | {outcome[:80]} | {repeats} |")


app = ServerApp()
"""Trains all on a real grid; the outcomes stand in a file of the folder `out`."""


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train all, with the number of clients and of rounds that the run config has."""
    config = context.run_config
    folder, change = Path(str(config["out"])), {k: config[k] for k in ("clients", "rounds")}
    outcomes = train_all(grid, folder, **change)
    (folder / "outcomes.json").write_text(json.dumps(outcomes))
