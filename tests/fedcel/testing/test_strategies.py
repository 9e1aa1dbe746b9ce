"""The built-in strategy holds its contract, with every rule that makes one of many deltas."""

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
    """A long memory, undamped, and a limit on norms."""

    extra_settings: ClassVar[dict[str, Any]] = {
        "strategy.momentum": 0.9,
        "strategy.damped": False,
        "strategy.gain": 0.5,
        "strategy.max-norm": 10.0,
    }


class TestMedian(Built):
    """A robust rule that looks at values."""

    extra_settings: ClassVar[dict[str, Any]] = {"strategy.aggregation": "median"}


class TestGeometricMedian(Built):
    """A robust rule that looks at whole deltas."""

    extra_settings: ClassVar[dict[str, Any]] = {"strategy.aggregation": "geometric-median"}


class TestClipped(Built):
    """A robust rule that looks at norms."""

    extra_settings: ClassVar[dict[str, Any]] = {"strategy.aggregation": "clipped"}


class TestTrimmed(Built):
    """A robust rule that drops the extremes of each value."""

    extra_settings: ClassVar[dict[str, Any]] = {
        "strategy.aggregation": "trimmed",
        "strategy.trim": 0.3,
    }
