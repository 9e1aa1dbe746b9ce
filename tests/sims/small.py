"""Settings of runs that end in seconds."""

from typing import Any

from fedcel.settings import Scalar

CLUSTERED: dict[str, Any] = {
    "engine": "local",
    "clients": 3,
    "rounds": 6,
    "local.steps": 4,
    "cel.kind": "cluster",
    "cel.warm-up": 1,
    "chain.burn-in": 0.7,
    "chain.thin": 1,
}
"""Three clients with class centres, a chain of two models."""

SAMPLED: dict[str, Scalar] = {
    "engine": "local",
    "clients": 2,
    "rounds": 8,
    "local.steps": 10,
    "chain.burn-in": 0.5,
    "chain.thin": 1,
}
"""Two clients without a loss, a chain of a few models."""

QUICK: dict[str, Scalar] = {
    "engine": "local",
    "rounds": 5,
    "local.steps": 3,
    "cel.warm-up": 1,
    "attack.names": "optimal",
    "attack.seeds": 1,
    "data.test": 120,
}
"""A bench's cell with nothing trained against it."""

FEDAVG = "flwr.serverapp.strategy:FedAvg"
POINT: dict[str, Scalar] = {
    "temperature": 0.0,
    "prior.mode": "none",
    "strategy.momentum": 0.0,
    "chain.scope": "full",
}
"""Training without noise, prior and momentum, as Flower's FedAvg does it."""
STOCK: dict[str, Scalar] = {**POINT, "strategy.upload": "weights", "strategy.name": FEDAVG}
"""The same by Flower's strategy."""
