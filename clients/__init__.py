"""What faces a data holder or a querier: Flower clients, the guard, the service's client.

Loaded when asked for: a process that only trains has no use for the service's libraries, whose
import takes longer than many a round.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clients.app import client_app
    from clients.evaluation import EvaluationClient
    from clients.guard import Leak, LeakGuard, leak_bits
    from clients.posterior import PosteriorClient
    from clients.split.client import AsyncSplitClient, OwnImages, SplitClient
    from clients.split.protocol import Answer

__all__ = [
    "Answer",
    "AsyncSplitClient",
    "EvaluationClient",
    "Leak",
    "LeakGuard",
    "OwnImages",
    "PosteriorClient",
    "SplitClient",
    "client_app",
    "leak_bits",
]

MODULES = {
    "clients.app": ("client_app",),
    "clients.evaluation": ("EvaluationClient",),
    "clients.guard": ("Leak", "LeakGuard", "leak_bits"),
    "clients.posterior": ("PosteriorClient",),
    "clients.split.client": ("AsyncSplitClient", "OwnImages", "SplitClient"),
    "clients.split.protocol": ("Answer",),
}


def __getattr__(name: str) -> object:
    """Return a public name of this package, its module loaded now."""
    for module, names in MODULES.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
