"""The built-in strategy holds its contract, with each rule that combines deltas."""

from typing import Any, ClassVar

from fedcel.federation import ServerState
from fedcel.settings import Settings
from fedcel.testing import StrategyContract
from strategies import PosteriorStrategy


class Built(StrategyContract):
    """The built-in strategy."""

    def build(
        self, settings: Settings, state: ServerState, shapes: list[tuple[int, ...]], cut: int
    ) -> PosteriorStrategy:
        """Return it."""
        return PosteriorStrategy(settings, state, shapes, cut)


class TestMean(Built):
    """As it is by default."""


class TestMomentumAndGain(Built):
    """A long memory, and a limit on norms."""

    extra_settings: ClassVar[dict[str, Any]] = {
        "strategy.momentum": 0.9,
        "strategy.gain": 0.5,
        "strategy.max-norm": 10.0,
    }


class TestGeometricMedian(Built):
    """The robust rule."""

    extra_settings: ClassVar[dict[str, Any]] = {"strategy.aggregation": "geometric-median"}
