"""Contracts of parts of your own: a function a kind, ContractError where a line does not hold.

Each is loaded when it is first used: `check_delta_strategy` alone needs Flower.
"""

from typing import TYPE_CHECKING

from fedcel.lazy import export_lazily as _export_lazily

if TYPE_CHECKING:
    from fedcel.testing.attacks import check_attack as check_attack
    from fedcel.testing.built_parts import check_cel as check_cel
    from fedcel.testing.built_parts import check_defence as check_defence
    from fedcel.testing.built_parts import check_mechanism as check_mechanism
    from fedcel.testing.built_parts import check_net as check_net
    from fedcel.testing.built_parts import check_transform as check_transform
    from fedcel.testing.samplers import check_sampler as check_sampler
    from fedcel.testing.sources import check_source as check_source
    from fedcel.testing.strategy_contract import check_delta_strategy as check_delta_strategy
else:
    __all__, __getattr__, __dir__ = _export_lazily(__name__, __file__)
