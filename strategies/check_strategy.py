"""Checks of a strategy before a run, and the name by which its errors are reported."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fedcel.errors import FailedError, FedcelError, PluginError
from fedcel.federation import ServerState, init_server_state
from fedcel.nets import FlatNet
from fedcel.own_parts import blame_own_parts
from fedcel.plugins import PartName, check_contract
from fedcel.settings import OWN_STRATEGY, Settings, parse_settings
from fedcel.testing.strategy_contract import (
    CUT,
    EXAMPLES,
    SHAPES,
    STRATEGY_CHECKS,
    StrategyCase,
)
from strategies.build_strategy import build_strategy
from strategies.posterior_strategy import PosteriorStrategy


def check_strategy(settings: Settings, flat: FlatNet) -> None:
    """Build the strategy of these settings, a user's own held to its contract; else FedcelError."""
    part = _name_part(settings)
    try:
        strategy = build_strategy(
            settings, init_server_state(flat.vector), flat.shapes, flat.device_size
        )
    except FedcelError:
        raise
    except Exception as error:
        raise PluginError(part.describe_failure(error)) from error
    if not isinstance(strategy, PosteriorStrategy):
        return
    same = {key: getattr(settings, key) for key in ("rounds", "chain", "strategy")}
    small = parse_settings({"clients": len(EXAMPLES), "temperature": 0.0}).model_copy(update=same)

    def build(state: ServerState) -> Any:
        return build_strategy(small, state, SHAPES, CUT)

    check_contract(part, STRATEGY_CHECKS, StrategyCase(build))


@contextmanager
def blame_strategy(settings: Settings) -> Iterator[None]:
    """Raise FailedError by the user's part, or the strategy, that raised something unforeseen."""
    try:
        with blame_own_parts(settings):
            yield
    except (FedcelError, OSError):
        raise
    except Exception as error:
        if settings.strategy.name == OWN_STRATEGY:
            raise
        raise FailedError(_name_part(settings).describe_failure(error)) from error


def _name_part(settings: Settings) -> PartName:
    return PartName("strategy.name", settings.strategy.name, "check_delta_strategy")
