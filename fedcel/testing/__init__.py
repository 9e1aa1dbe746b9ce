"""Contract suites that a part of your own inherits: name the subclass `TestMine`, run pytest.

`StrategyContract` is loaded when asked for: it alone needs Flower.
"""

from typing import TYPE_CHECKING

from fedcel.testing.attacks import AttackContract
from fedcel.testing.cel import CELContract
from fedcel.testing.defences import DefenceContract
from fedcel.testing.mechanisms import MechanismContract
from fedcel.testing.nets import NetContract
from fedcel.testing.samplers import SamplerContract
from fedcel.testing.sources import SourceContract
from fedcel.testing.transforms import TransformContract

if TYPE_CHECKING:
    from fedcel.testing.strategies import StrategyContract

__all__ = [
    "AttackContract",
    "CELContract",
    "DefenceContract",
    "MechanismContract",
    "NetContract",
    "SamplerContract",
    "SourceContract",
    "StrategyContract",
    "TransformContract",
]


def __getattr__(name: str) -> object:
    """Return the suite that needs Flower, its module loaded now."""
    if name != "StrategyContract":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from fedcel.testing.strategies import StrategyContract

    return StrategyContract
