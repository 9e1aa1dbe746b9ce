"""The strategy that settings name: ours, a subclass of it, or a stock one of Flower."""

import inspect
from collections.abc import Container, Iterable
from typing import final

from flwr.app import ArrayRecord, Message, MetricRecord
from flwr.serverapp.strategy import Strategy

from fedcel import plugins
from fedcel.errors import RoundError, SettingsError
from fedcel.federation import aggregation
from fedcel.settings.groups import Strategy as Group
from fedcel.settings.parsing import OWN_STRATEGY, Settings
from strategies.posterior import PosteriorStrategy
from strategies.validate_reply import failure

NO_MOMENTUM = {"momentum": 0.0}
"""What a strategy without momentum does, whether it is told so or not."""


@final
class Answers:
    """What a stock strategy's nodes answered in the last round: it leaves errors out in silence."""

    def __init__(self) -> None:
        """Nothing was answered yet."""
        self.nodes: list[int] = []
        self.rejected: list[dict[str, object]] = []

    def listen(self, strategy: Strategy) -> None:
        """Note all replies that the strategy is given from now on."""
        aggregate = strategy.aggregate_train

        def heard(
            server_round: int, replies: Iterable[Message]
        ) -> tuple[ArrayRecord | None, MetricRecord | None]:
            there = list(replies)
            self.note(there)
            return aggregate(server_round, there)

        strategy.aggregate_train = heard  # type: ignore[method-assign]

    def note(self, replies: Iterable[Message]) -> None:
        """Take a round's replies in the place of the last's."""
        told = [(reply.metadata.src_node_id, failure(reply)) for reply in replies]
        self.nodes = [node for node, reason in told if reason is None]
        self.rejected = [
            {"client": f"node {node}", "reason": reason} for node, reason in told if reason
        ]

    def of_round(self, number: int) -> tuple[list[int], list[dict[str, object]]]:
        """Return who trained and who did not; RoundError when nobody did: the model stood still."""
        if not self.nodes:
            first = self.rejected[0]["reason"] if self.rejected else "no reply came in time"
            raise RoundError(f"no node trained in round {number}; the first: {first}")
        return self.nodes, self.rejected


def make(
    settings: Settings, state: aggregation.ServerState, shapes: list[tuple[int, ...]], cut: int
) -> Strategy:
    """Return the strategy of the settings: ours, a subclass of it, or a stock one of Flower.

    `package.module:object` may also be a function that returns a strategy on weights, for one that
    needs more than is offered: it is called with what it names among these.
    """
    if settings.strategy.name == OWN_STRATEGY:
        return PosteriorStrategy(settings, state, shapes, cut)
    found = plugins.load(settings.strategy.name)
    if not callable(found) or (isinstance(found, type) and not issubclass(found, Strategy)):
        raise SettingsError(f"strategy.name {settings.strategy.name!r} is no Flower Strategy")
    if isinstance(found, type) and issubclass(found, PosteriorStrategy):
        return found(settings, state, shapes, cut)
    if settings.strategy.upload != "weights":
        raise SettingsError(
            f"strategy.upload is 'delta', {settings.strategy.name} averages weights; "
            "set strategy.upload to 'weights' and temperature to 0"
        )
    everyone = settings.clients
    taking_part = settings.clients_per_round or everyone
    offered = {
        "fraction_train": taking_part / everyone,
        "fraction_evaluate": 0.0,  # the server scores every round on its validation images
        "min_train_nodes": taking_part,
        "min_available_nodes": everyone,
        "server_learning_rate": settings.strategy.gain,
        "server_momentum": settings.strategy.momentum,
        "proximal_mu": settings.strategy.proximal,
        "settings": settings,
    }
    known = inspect.signature(found).parameters
    refuse_unread(settings, known)
    try:
        made = found(**{key: value for key, value in offered.items() if key in known})
    except TypeError as error:
        raise SettingsError(
            f"strategy.name {settings.strategy.name!r} cannot be made from {', '.join(offered)}: "
            f"{error}; name a function that takes some of these and returns the strategy"
        ) from error
    if not isinstance(made, Strategy):
        raise SettingsError(f"strategy.name {settings.strategy.name!r} made no Flower Strategy")
    return made


def refuse_unread(settings: Settings, known: Container[str]) -> None:
    """Refuse what was set and a strategy that takes the arguments `known` would never read."""
    if "settings" in known:
        return
    plain = Group()
    takes = {"gain": "server_learning_rate", "momentum": "server_momentum"}
    takes |= {"damped": "server_momentum", "max_norm": ""}
    for key, argument in takes.items():
        value, default = getattr(settings.strategy, key), getattr(plain, key)
        if value not in (default, NO_MOMENTUM.get(key, default)) and argument not in known:
            raise SettingsError(
                f"strategy.{key.replace('_', '-')} is {value!r}, which {settings.strategy.name} "
                f"does not take; leave it at {default!r}, or name a function of your own that "
                "takes `settings` and returns the strategy"
            )
