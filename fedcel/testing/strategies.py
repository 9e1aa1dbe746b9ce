"""Contract suite of strategies over deltas, which needs Flower."""

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import pytest

from fedcel.federation import ServerState
from fedcel.settings import Settings, parse_settings
from fedcel.testing.check_names import name_check
from fedcel.testing.strategy_contract import CUT, EXAMPLES, SHAPES, STRATEGY_TESTS, StrategyCase


class StrategyContract:
    """Tests that a subclass of `strategies.PosteriorStrategy` must pass.

    Name your subclass `TestMine`, define `build`; pytest runs the rest. A stock strategy of Flower
    cannot pass: it averages weights and ends the run on a bad reply.

    Attributes:
        extra_settings: Settings beyond temperature 0, as flat keys.
    """

    extra_settings: ClassVar[dict[str, Any]] = {}

    def build(
        self, settings: Settings, state: ServerState, shapes: list[tuple[int, ...]], cut: int
    ) -> Any:
        """Make your strategy, as the ServerApp does.

        Args:
            settings: The run's settings.
            state: The server's state, with the model that training starts from.
            shapes: The shapes of the model's arrays.
            cut: Number of the encoder's parameters.

        Returns:
            The strategy.
        """
        raise NotImplementedError

    @pytest.mark.parametrize("check", STRATEGY_TESTS, ids=name_check)
    def test_contract(self, check: Callable[[StrategyCase], None]) -> None:
        """Each line of the contract."""
        base = {"clients": len(EXAMPLES), "rounds": 10, "temperature": 0.0, "chain.burn-in": 0.5}
        settings = parse_settings(base | self.extra_settings)
        check(StrategyCase(partial(self._build, settings)))

    def _build(self, settings: Settings, state: ServerState) -> Any:
        return self.build(settings, state, SHAPES, CUT)
