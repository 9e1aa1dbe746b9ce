"""The strategy that settings name: ours, a subclass of it, or a stock one of Flower."""

import inspect
import math
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any, NamedTuple

from flwr.serverapp.strategy import (
    Bulyan,
    FedMedian,
    FedTrimmedAvg,
    FedXgbBagging,
    FedXgbCyclic,
    MultiKrum,
    Strategy,
)

from fedcel import plugins
from fedcel.errors import PluginError, SettingsError
from fedcel.federation import ServerState
from fedcel.settings import OWN_STRATEGY, Settings, StrategySettings, parse_strategy_arguments
from strategies.flower_log import filter_log
from strategies.posterior_strategy import PosteriorStrategy
from strategies.strategy_arguments import Signature, convert_argument, read_signature

_WRAPPED = "strategy"
"""The parameter by which Flower's wrappers take the strategy that they wrap."""
_FLOWER = "flwr.serverapp.strategy"
_READ_ANYWAY = ("name", "upload", "timeout", "arguments", "proximal", "least_share")
"""Settings that are read whatever the strategy takes; the proximal pull by the clients."""
_NEUTRAL = {"momentum": 0.0}
"""Values that a strategy without the argument has anyway."""
_SAMPLING = ("fraction_train", "fraction_evaluate", "min_train_nodes", "min_available_nodes")
"""What a function that takes any name is given: it hands them on to a strategy."""


class Offer(NamedTuple):
    """A value that a run has for an argument, and what decides it."""

    value: object
    decider: str
    """The key of a setting, or words."""


class Blueprint(NamedTuple):
    """What a strategy is made of: a class or a function, and another strategy that it wraps."""

    name: str
    factory: Callable[..., Any]
    signature: Signature
    wrapped: "Blueprint | None"

    @property
    def accepted_names(self) -> set[str]:
        """Return the names that it or what it wraps takes."""
        return {*self.signature.parameters, *(self.wrapped.accepted_names if self.wrapped else ())}

    @property
    def is_open(self) -> bool:
        """Say whether it or what it wraps takes any name."""
        return self.signature.is_open or (self.wrapped is not None and self.wrapped.is_open)


def build_strategy(
    settings: Settings, state: ServerState, shapes: list[tuple[int, ...]], cut: int
) -> Strategy:
    """Build the strategy that the settings name.

    `package.module:object` is a class or a function that returns a strategy on weights. It is
    called with what it takes among the arguments offered, and with `strategy.arguments`. A class
    that wraps another strategy, as Flower's for differential privacy, is given that one.

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
    factory = _load_factory("strategy.name", name)
    if isinstance(factory, type) and issubclass(factory, PosteriorStrategy):
        if settings.strategy.upload == "weights":
            raise SettingsError(f"strategy.upload is 'weights'; {name!r} aggregates 'delta'")
        if settings.strategy.arguments != "none":
            raise SettingsError(
                f"strategy.arguments is {settings.strategy.arguments!r}, which {name} does not "
                "take: a strategy over deltas reads `settings`; set it to 'none'"
            )
        return factory(settings, state, shapes, cut)
    if settings.strategy.upload != "weights":
        raise SettingsError(
            f"strategy.upload is 'delta', {name} averages weights; "
            "set strategy.upload to 'weights' and temperature to 0"
        )
    return build_stock_strategy(settings, factory)


def build_stock_strategy(settings: Settings, factory: Callable[..., Any]) -> Strategy:
    """Build a strategy of Flower's, one derived from it, or what a user's function makes.

    Args:
        settings: The run's settings, which name it.
        factory: The class or the function.

    Raises:
        SettingsError: It cannot be made of the settings, or would never read one that is set.
    """
    texts = parse_strategy_arguments(settings.strategy.arguments)
    blueprint = _draw_blueprint(settings.strategy.name, factory, texts)
    offers = _list_offers(settings)
    _refuse_wrong_arguments(blueprint, texts, offers)
    _refuse_unread_settings(settings, blueprint, offers)
    _refuse_few_clients(settings, blueprint)
    return _make(settings, blueprint, texts, offers)


def _load_factory(key: str, name: str) -> Callable[..., Any]:
    """Load a class or a function that could make a strategy for fedcel's clients."""
    factory = plugins.load_object(name)
    if not callable(factory) or (isinstance(factory, type) and not issubclass(factory, Strategy)):
        raise SettingsError(f"{key} {name!r} is no Flower Strategy")
    if isinstance(factory, type) and issubclass(factory, FedXgbBagging | FedXgbCyclic):
        raise SettingsError(
            f"{key} is {name!r}, which combines trees of XGBoost; clients of fedcel train a net, "
            "whose weights other strategies combine, as flwr.serverapp.strategy:FedAvg"
        )
    if inspect.isabstract(factory):
        raise SettingsError(f"{key} is {name!r}, which is abstract; name a class derived from it")
    return factory


def _draw_blueprint(name: str, factory: Callable[..., Any], texts: dict[str, str]) -> Blueprint:
    """Return what the strategy is made of; takes what it wraps out of the arguments."""
    try:
        signature = read_signature(factory)
    except (TypeError, ValueError) as error:
        raise SettingsError(f"strategy.name {name!r} cannot be made: {error}") from None
    if _WRAPPED not in signature.parameters:
        return Blueprint(name, factory, signature, None)
    inner = texts.pop(_WRAPPED, "FedAvg")
    inner_name = inner if ":" in inner else f"{_FLOWER}:{inner}"
    try:
        inner_factory = _load_factory("in strategy.arguments strategy", inner_name)
    except PluginError as error:
        raise SettingsError(f"strategy.arguments names the strategy {error}") from None
    inner_signature = read_signature(inner_factory)
    is_own = isinstance(inner_factory, type) and issubclass(inner_factory, PosteriorStrategy)
    if is_own or _WRAPPED in inner_signature.parameters:
        raise SettingsError(
            f"strategy.arguments has strategy={inner}, which {name} cannot wrap; name one that "
            "averages weights and wraps none, as FedAvg"
        )
    wrapped = Blueprint(inner_name, inner_factory, inner_signature, None)
    return Blueprint(name, factory, signature, wrapped)


def _list_offers(settings: Settings) -> dict[str, Offer]:
    """Return what a run has for the arguments of strategies, by their names in Flower."""
    strategy = settings.strategy
    per_round = settings.clients_per_round or settings.clients
    scores = "the server, which scores every round on its own validation images"
    return {
        "fraction_train": Offer(per_round / settings.clients, "clients-per-round"),
        "min_train_nodes": Offer(per_round, "clients-per-round"),
        "num_sampled_clients": Offer(per_round, "clients-per-round"),
        "min_available_nodes": Offer(settings.clients, "clients"),
        "fraction_evaluate": Offer(0.0, scores),
        "min_evaluate_nodes": Offer(0, scores),
        "server_learning_rate": Offer(strategy.gain, "strategy.gain"),
        "server_momentum": Offer(strategy.momentum, "strategy.momentum"),
        "proximal_mu": Offer(strategy.proximal, "strategy.proximal"),
        "num_malicious_nodes": Offer(strategy.byzantine, "strategy.byzantine"),
        "num_nodes_to_select": Offer(per_round - strategy.byzantine, "strategy.byzantine"),
        "beta": Offer(strategy.trim, "strategy.trim"),
        "client_learning_rate": Offer(settings.local.rate, "local.rate"),
        "eta_l": Offer(settings.local.rate, "local.rate"),
        "train_loss_key": Offer("loss", "the clients, who send it under this name"),
        "settings": Offer(settings, "the run"),
    }


def _refuse_wrong_arguments(
    blueprint: Blueprint, texts: Mapping[str, str], offers: Mapping[str, Offer]
) -> None:
    """Refuse arguments that nobody takes, and those that something else decides."""
    for key in texts:
        if key not in blueprint.accepted_names and not blueprint.is_open:
            names = sorted(blueprint.accepted_names - {"settings", "self"})
            near = get_close_matches(key, names, 1, cutoff=0)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise SettingsError(
                f"strategy.arguments has {key!r}, which {blueprint.name} does not take{hint}"
            )
        if key in offers:
            raise SettingsError(
                f"strategy.arguments has {key!r}, which is decided by {offers[key].decider}; take "
                "it out of strategy.arguments"
            )


def _refuse_unread_settings(
    settings: Settings, blueprint: Blueprint, offers: Mapping[str, Offer]
) -> None:
    """Refuse what was set and the strategy would never read."""
    names, defaults = blueprint.accepted_names, StrategySettings()
    if "proximal_mu" in names and settings.prior.mode != "none":
        raise SettingsError(
            f"prior.mode is {settings.prior.mode!r} and strategy.name {blueprint.name!r}: its "
            "proximal pull takes the place of the prior's; set prior.mode to 'none'"
        )
    if "settings" in names or blueprint.is_open:
        return
    readers = {"damped": {"server_momentum"}}
    for argument, offer in offers.items():
        readers.setdefault(offer.decider.removeprefix("strategy."), set()).add(argument)
    for field in StrategySettings.model_fields:
        key = field.replace("_", "-")
        value, default = getattr(settings.strategy, field), getattr(defaults, field)
        is_set = value not in (default, _NEUTRAL.get(field, default))
        if field not in _READ_ANYWAY and is_set and not names & readers.get(key, set()):
            raise SettingsError(
                f"strategy.{key} is {value!r}, which {blueprint.name} does not take; leave it at "
                f"{default!r}, or name a function of your own that takes `settings` and returns "
                "the strategy"
            )
    draws_clients = settings.clients_per_round not in (0, settings.clients)
    if draws_clients and not names & {"fraction_train", "min_train_nodes"}:
        raise SettingsError(
            f"clients-per-round is {settings.clients_per_round} of {settings.clients}, and "
            f"{blueprint.name} takes neither fraction_train nor min_train_nodes; let it take "
            "them, or set clients-per-round to 0"
        )


def _refuse_few_clients(settings: Settings, blueprint: Blueprint) -> None:
    """Refuse a robust strategy with too few clients for one to be outvoted."""
    hostile, trim = settings.strategy.byzantine, settings.strategy.trim
    rules: list[tuple[type[Strategy], int, str]] = [
        (Bulyan, 4 * hostile + 3, f"4 strategy.byzantine ({hostile}) + 3"),
        (MultiKrum, 2 * hostile + 3, f"2 strategy.byzantine ({hostile}) + 3"),
        (
            FedTrimmedAvg,
            max(3, math.ceil(round(1 / trim, 9))),
            f"1 / strategy.trim ({trim:g}), and 3",
        ),
        (FedMedian, 3, "3"),
    ]
    per_round = settings.clients_per_round or settings.clients
    for part in (blueprint, blueprint.wrapped):
        for kind, least, words in rules:
            is_kind = part and isinstance(part.factory, type) and issubclass(part.factory, kind)
            if part and is_kind and per_round < least:
                raise SettingsError(
                    f"{per_round} clients train in a round, {part.name} needs {least} or more: "
                    f"{words}; raise clients or clients-per-round, or change these"
                )


def _make(
    settings: Settings,
    blueprint: Blueprint,
    texts: Mapping[str, str],
    offers: Mapping[str, Offer],
) -> Strategy:
    """Make a strategy of a blueprint, and first what it wraps."""
    signature = blueprint.signature
    names = set(signature.parameters)
    if signature.is_open:
        names |= {*_SAMPLING, *_list_set_arguments(settings, offers)}
    arguments = {key: offer.value for key, offer in offers.items() if key in names}
    inner_texts = {k: v for k, v in texts.items() if blueprint.wrapped and k not in names}
    for key, text in texts.items():
        if key not in inner_texts:
            arguments[key] = convert_argument(key, text, signature.parameters.get(key))
    if blueprint.wrapped:
        arguments[_WRAPPED] = _make(settings, blueprint.wrapped, inner_texts, offers)
    missing = sorted(signature.required - arguments.keys())
    if missing:
        example = ",".join(f"{key}=..." for key in missing)
        raise SettingsError(
            f"strategy.name {blueprint.name!r} needs {' and '.join(missing)}, which no setting "
            f"decides; set strategy.arguments to '{example}'"
        )
    try:
        with filter_log():
            strategy = blueprint.factory(**arguments)
    except (TypeError, ValueError) as error:
        raise SettingsError(
            f"strategy.name {blueprint.name!r} cannot be made from "
            f"{', '.join(arguments) or 'no arguments'}: "
            f"{error}; give it other strategy.arguments, or name a function that takes some of "
            "these and returns the strategy"
        ) from error
    if not isinstance(strategy, Strategy):
        raise SettingsError(f"strategy.name {blueprint.name!r} made no Flower Strategy")
    return strategy


def _list_set_arguments(settings: Settings, offers: Mapping[str, Offer]) -> set[str]:
    """Return the arguments whose setting of the group `strategy` is not the default."""
    defaults = StrategySettings()
    changed = {
        f"strategy.{field.replace('_', '-')}"
        for field in StrategySettings.model_fields
        if getattr(settings.strategy, field) not in (getattr(defaults, field), _NEUTRAL.get(field))
    }
    return {key for key, offer in offers.items() if offer.decider in changed} - {
        "num_nodes_to_select"
    }
