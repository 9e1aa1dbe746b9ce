"""Contract suites that a part of your own inherits: name the subclass `TestMine`, run pytest.

Each is loaded when it is first used: `StrategyContract` alone needs Flower.
"""

from typing import TYPE_CHECKING

from fedcel.lazy import export_lazily as _export_lazily

if TYPE_CHECKING:
    from fedcel.testing.attacks import AttackContract as AttackContract
    from fedcel.testing.samplers import SamplerContract as SamplerContract
    from fedcel.testing.sources import SourceContract as SourceContract
    from fedcel.testing.strategies import StrategyContract as StrategyContract
    from fedcel.testing.suites import CELContract as CELContract
    from fedcel.testing.suites import DefenceContract as DefenceContract
    from fedcel.testing.suites import MechanismContract as MechanismContract
    from fedcel.testing.suites import NetContract as NetContract
    from fedcel.testing.suites import TransformContract as TransformContract
else:
    __all__, __getattr__, __dir__ = _export_lazily(__name__, __file__)
