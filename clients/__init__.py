"""What faces a data holder or a querier: Flower clients, the guard, the service's client.

Loaded when asked for: a process that only trains has no use for the service's libraries, whose
import takes longer than many a round.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clients.device import AsyncSplitClient, OwnImages, PrivatePrediction, SplitClient
    from clients.flower.client_app import make_client_app
    from clients.flower.evaluation_client import EvaluationClient
    from clients.flower.posterior_client import PosteriorClient
    from clients.leak_guard import Leak, LeakGuard, measure_leak

__all__ = [
    "AsyncSplitClient",
    "EvaluationClient",
    "Leak",
    "LeakGuard",
    "OwnImages",
    "PosteriorClient",
    "PrivatePrediction",
    "SplitClient",
    "make_client_app",
    "measure_leak",
]

MODULES = {
    "clients.device": ("AsyncSplitClient", "OwnImages", "PrivatePrediction", "SplitClient"),
    "clients.flower.client_app": ("make_client_app",),
    "clients.flower.evaluation_client": ("EvaluationClient",),
    "clients.flower.posterior_client": ("PosteriorClient",),
    "clients.leak_guard": ("Leak", "LeakGuard", "measure_leak"),
}


def __getattr__(name: str) -> object:
    """Return a public name of this package, its module loaded now."""
    for module, names in MODULES.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
