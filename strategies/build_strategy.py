"""The strategy that settings name: ours, a subclass of it, or a stock one of Flower."""

import inspect
from collections.abc import Container, Iterable
from typing import final

from flwr.app import ArrayRecord, Message, MetricRecord
from flwr.serverapp.strategy import Strategy

from fedcel import plugins
from fedcel.errors import RoundError, SettingsError
from fedcel.federation import Rejection, ServerState
from fedcel.settings import OWN_STRATEGY, Settings, StrategySettings
from strategies.posterior_strategy import PosteriorStrategy
from strategies.validate_reply import describe_failure

_NEUTRAL = {"momentum": 0.0}
"""Values that a strategy without the argument has anyway."""


@final
class ReplyRecorder:
    """Records what nodes replied to a stock strategy, which leaves errors out in silence."""

    def __init__(self, strategy: Strategy) -> None:
        """Record all replies that the strategy is given from now on."""
        self._nodes: list[int] = []
        self._rejected: list[Rejection] = []
        aggregate = strategy.aggregate_train

        def record_and_aggregate(
            server_round: int, replies: Iterable[Message]
        ) -> tuple[ArrayRecord | None, MetricRecord | None]:
            messages = list(replies)
            self._record(messages)
            return aggregate(server_round, messages)

        strategy.aggregate_train = record_and_aggregate  # type: ignore[method-assign]

    def read_round(self, number: int) -> tuple[list[int], list[Rejection]]:
        """Return who trained and who did not in the round that has just ended.

        Raises:
            RoundError: Nobody did: the model stood still.
        """
        if not self._nodes:
            first = self._rejected[0].reason if self._rejected else "no reply came in time"
            raise RoundError(f"no node trained in round {number}; the first: {first}")
        return self._nodes, self._rejected

    def _record(self, replies: Iterable[Message]) -> None:
        """Take a round's replies in the place of the last's."""
        outcomes = [(reply.metadata.src_node_id, describe_failure(reply)) for reply in replies]
        self._nodes = [node for node, reason in outcomes if reason is None]
        self._rejected = [Rejection(f"node {node}", reason) for node, reason in outcomes if reason]


def build_strategy(
    settings: Settings, state: ServerState, shapes: list[tuple[int, ...]], cut: int
) -> Strategy:
    """Build the strategy that the settings name.

    `package.module:object` may also be a function that returns a strategy on weights, for one that
    needs more than is offered: it is called with what it names among the arguments offered.

    Args:
        settings: The run's settings.
        state: Where the run stands.
        shapes: The shapes of the model's arrays.
        cut: Number of encoder parameters.

    Raises:
        SettingsError: It is no strategy, or would never read something that is set.
        PluginError: There is no such object.
    """
    name = settings.strategy.name
    if name == OWN_STRATEGY:
        return PosteriorStrategy(settings, state, shapes, cut)
    factory = plugins.load_object(name)
    if not callable(factory) or (isinstance(factory, type) and not issubclass(factory, Strategy)):
        raise SettingsError(f"strategy.name {name!r} is no Flower Strategy")
    if isinstance(factory, type) and issubclass(factory, PosteriorStrategy):
        if settings.strategy.upload == "weights":
            raise SettingsError(f"strategy.upload is 'weights'; {name!r} aggregates 'delta'")
        return factory(settings, state, shapes, cut)
    if settings.strategy.upload != "weights":
        raise SettingsError(
            f"strategy.upload is 'delta', {name} averages weights; "
            "set strategy.upload to 'weights' and temperature to 0"
        )
    per_round = settings.clients_per_round or settings.clients
    offered = {
        "fraction_train": per_round / settings.clients,
        "fraction_evaluate": 0.0,  # the server scores every round on its validation images
        "min_train_nodes": per_round,
        "min_available_nodes": settings.clients,
        "server_learning_rate": settings.strategy.gain,
        "server_momentum": settings.strategy.momentum,
        "proximal_mu": settings.strategy.proximal,
        "settings": settings,
    }
    parameters = inspect.signature(factory).parameters
    _refuse_unread_settings(settings, parameters)
    try:
        strategy = factory(**{key: value for key, value in offered.items() if key in parameters})
    except TypeError as error:
        raise SettingsError(
            f"strategy.name {name!r} cannot be made from {', '.join(offered)}: "
            f"{error}; name a function that takes some of these and returns the strategy"
        ) from error
    if not isinstance(strategy, Strategy):
        raise SettingsError(f"strategy.name {name!r} made no Flower Strategy")
    return strategy


def _refuse_unread_settings(settings: Settings, parameters: Container[str]) -> None:
    """Refuse what was set and a strategy with these parameters would never read."""
    if "settings" in parameters:
        return
    defaults = StrategySettings()
    arguments = {
        "gain": "server_learning_rate",
        "momentum": "server_momentum",
        "damped": "server_momentum",
        "max_norm": "",
    }
    for key, argument in arguments.items():
        value, default = getattr(settings.strategy, key), getattr(defaults, key)
        if value not in (default, _NEUTRAL.get(key, default)) and argument not in parameters:
            raise SettingsError(
                f"strategy.{key.replace('_', '-')} is {value!r}, which {settings.strategy.name} "
                f"does not take; leave it at {default!r}, or name a function of your own that "
                "takes `settings` and returns the strategy"
            )
