"""A strategy is built once before a run begins, and a user's own held to its contract."""

from typing import Any

import torch

from fedcel.errors import FedcelError, PluginError
from fedcel.federation import init_server_state
from fedcel.nets import FlatNet
from fedcel.plugins import PartName, check_contract
from fedcel.settings import CelSettings, LocalSettings, Settings, UpdateSettings
from fedcel.testing import made_up_round
from strategies.build_strategy import build_strategy
from strategies.posterior_strategy import PosteriorStrategy


def check_strategy(settings: Settings, flat: FlatNet) -> None:
    """Build the strategy that the settings name; hold a user's own over deltas to its contract.

    Args:
        settings: The run's settings.
        flat: The run's net.

    Raises:
        FedcelError: It cannot be built, or breaks its contract.
    """
    part = PartName("strategy.name", settings.strategy.name, "StrategyContract")
    try:
        strategy = build_strategy(settings, init_server_state(flat.vector), flat.shapes, flat.cut)
    except FedcelError:
        raise
    except Exception as error:
        raise PluginError(part.describe_failure(error)) from error
    if not isinstance(strategy, PosteriorStrategy):
        return
    small = settings.model_copy(
        update={
            "clients": len(made_up_round.EXAMPLES),
            "clients_per_round": 0,
            "temperature": 0.0,
            "cel": CelSettings(),
            "local": LocalSettings(),
            "update": UpdateSettings(),
        }
    )

    def build() -> Any:
        state = init_server_state(torch.linspace(-1, 1, made_up_round.SIZE))
        return made_up_round.register_clients(
            build_strategy(small, state, made_up_round.SHAPES, made_up_round.CUT)
        )

    check_contract(part, made_up_round.STRATEGY_CHECKS, made_up_round.StrategyCase(build))
