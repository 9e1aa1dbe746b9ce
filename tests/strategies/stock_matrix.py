"""All strategies of the installed Flower: with which settings each trains, or why it does not."""

from typing import Any

STOCK: dict[str, Any] = {
    "engine": "loop",
    "clients": 8,
    "rounds": 2,
    "local.steps": 4,
    "net.width": 16,
    "net.features": 8,
    "temperature": 0.0,
    "prior.mode": "none",
    "strategy.momentum": 0.0,
    "strategy.upload": "weights",
    "strategy.name": "flwr.serverapp.strategy:FedAvg",
    "chain.scope": "full",
}
"""A small run under federated averaging."""
ARGUMENTS = {
    "DifferentialPrivacyClientSideAdaptiveClipping": "noise_multiplier=0.01",
    "DifferentialPrivacyClientSideFixedClipping": "noise_multiplier=0.01,clipping_norm=1",
    "DifferentialPrivacyServerSideAdaptiveClipping": "noise_multiplier=0.01",
    "DifferentialPrivacyServerSideFixedClipping": "noise_multiplier=0.01,clipping_norm=1",
}
"""`strategy.arguments` of those that cannot be made without."""
CHANGES = {"FedAvgM": {"strategy.momentum": 0.9}, "FedProx": {"strategy.proximal": 0.1}}
"""Without these two are FedAvg."""
REFUSED = {
    "FedXgbBagging": "combines trees of XGBoost",
    "FedXgbCyclic": "combines trees of XGBoost",
    "Result": "is no Flower Strategy",
    "Strategy": "is abstract",
}
"""Why a name of Flower's trains nothing."""


def settings_of(name: str) -> dict[str, Any]:
    """Return the settings of a small run under this strategy."""
    return {
        **STOCK,
        "strategy.name": f"flwr.serverapp.strategy:{name}",
        "strategy.arguments": ARGUMENTS.get(name, "none"),
        **CHANGES.get(name, {}),
    }


def is_repeatable(name: str) -> bool:
    """Say whether the same seed gives the same model: not where noise is added to it."""
    return not name.startswith("DifferentialPrivacy")
