"""The strategy that settings name: the project's own, a subclass of it, or one of Flower's."""

import math
from collections.abc import Callable
from difflib import get_close_matches
from inspect import Parameter, isabstract, signature
from typing import Annotated, Any

from flwr.serverapp.strategy import (
    Bulyan,
    FedAvg,
    FedMedian,
    FedTrimmedAvg,
    FedXgbBagging,
    FedXgbCyclic,
    MultiKrum,
    Strategy,
)
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from fedcel import plugins
from fedcel.errors import SettingsError
from fedcel.federation import ServerState
from fedcel.settings import OWN_STRATEGY, Settings, parse_strategy_arguments
from strategies.flower_log import filter_log
from strategies.posterior_strategy import PosteriorStrategy
from strategies.stock_strategy import StockStrategy

_SAMPLING = ("fraction_evaluate", "min_train_nodes", "min_available_nodes")
"""Arguments of FedAvg, and of whatever takes any name: it hands them on to a strategy."""
_NUMBER_OR_TEXT = Annotated[int | float | str, Field(union_mode="left_to_right")]


def build_strategy(
    settings: Settings, state: ServerState, shapes: list[tuple[int, ...]], device_size: int
) -> PosteriorStrategy | StockStrategy:
    """Build the strategy that the settings name.

    `device_size` is the number of parameters of the device's half, which come first.

    `package.module:object` is a subclass of `PosteriorStrategy`, or a class or a function that
    makes a strategy on weights. The latter is called with what it takes among the arguments that
    the run decides, and with `strategy.arguments`.

    Raises:
        SettingsError: It is no strategy that can train as set.
        PluginError: There is no such object.
    """
    rule = settings.strategy
    if rule.name == OWN_STRATEGY:
        return PosteriorStrategy(settings, state, shapes, device_size)
    factory: Any = plugins.load_object(rule.name)
    is_class = isinstance(factory, type)
    is_strategy = not is_class or (issubclass(factory, Strategy) and not isabstract(factory))
    if not callable(factory) or not is_strategy:
        raise SettingsError(f"strategy.name {rule.name!r} is no Flower Strategy, or is abstract")
    is_own = is_class and issubclass(factory, PosteriorStrategy)
    if is_own != (rule.upload == "delta"):
        takes = "'delta'" if is_own else "'weights' and temperature to 0"
        raise SettingsError(
            f"strategy.upload is {rule.upload!r}, which {rule.name} does not aggregate; set "
            f"strategy.upload to {takes}"
        )
    if is_own and rule.arguments == "none":
        posterior: PosteriorStrategy = factory(settings, state, shapes, device_size)
        return posterior
    if is_own:
        raise SettingsError(
            f"strategy.arguments is {rule.arguments!r}, which {rule.name} does not take: a "
            "strategy over deltas reads `settings`; set it to 'none'"
        )
    if is_class and issubclass(factory, FedXgbBagging | FedXgbCyclic):
        raise SettingsError(
            f"strategy.name is {rule.name!r}, which combines trees of XGBoost; clients of fedcel "
            "train a net, whose weights others combine, as flwr.serverapp.strategy:FedAvg"
        )
    strategy = _make_strategy(settings, factory)
    _check_clients(settings, strategy)
    return StockStrategy(strategy, settings, state, shapes)


def _make_strategy(settings: Settings, factory: Callable[..., Any]) -> Strategy:
    """Call a class or a function with what the run decides and `strategy.arguments` add."""
    name = settings.strategy.name
    try:
        parameters = signature(factory, eval_str=True).parameters
    except Exception as error:  # annotations are evaluated, which may raise anything
        raise SettingsError(f"strategy.name {name!r} has no readable signature: {error}") from None
    is_open = any(parameter.kind is Parameter.VAR_KEYWORD for parameter in parameters.values())
    accepted = {*parameters, *(_SAMPLING if is_open else ())}
    decided = _list_decided(settings)
    arguments = {key: value for key, value in decided.items() if key in accepted}
    if "strategy" in parameters:  # a wrapper of Flower's for differential privacy
        arguments["strategy"] = FedAvg(**{key: decided[key] for key in _SAMPLING})
    for key, text in parse_strategy_arguments(settings.strategy.arguments).items():
        if key in arguments:
            raise SettingsError(
                f"strategy.arguments has {key!r}, which the run decides; take it out, or name a "
                "function of your own that returns the strategy"
            )
        if key not in parameters and not is_open:
            near = get_close_matches(key, sorted(parameters), 1, cutoff=0)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise SettingsError(f"strategy.arguments has {key!r}, which {name} does not take{hint}")
        arguments[key] = _parse_argument(key, text, parameters.get(key))
    try:
        with filter_log():  # nobody evaluating is meant, and no warning
            strategy = factory(**arguments)
    except (TypeError, ValueError) as error:
        raise SettingsError(
            f"strategy.name {name!r} cannot be made from {', '.join(arguments) or 'no arguments'}: "
            f"{error}; give what it needs by strategy.arguments, as 'eta=0.1,tau=0.001', or name a "
            "function that takes some of these and returns the strategy"
        ) from error
    if not isinstance(strategy, Strategy):
        raise SettingsError(f"strategy.name {name!r} made no Flower Strategy")
    return strategy


def _list_decided(settings: Settings) -> dict[str, Any]:
    """Return the arguments that the run decides: a strategy trains all nodes that it is shown."""
    nodes = ("min_train_nodes", "min_available_nodes", "num_sampled_clients")
    return dict.fromkeys(nodes, settings.clients_per_round or settings.clients) | {
        "fraction_train": 1.0,
        "fraction_evaluate": 0.0,
        "min_evaluate_nodes": 0,
        "client_learning_rate": settings.local.step_size.rate,
        "eta_l": settings.local.step_size.rate,
        "train_loss_key": "loss",
        "settings": settings,
    }


def _parse_argument(key: str, text: str, parameter: Parameter | None) -> object:
    kind: Any = _NUMBER_OR_TEXT
    if parameter is not None and parameter.annotation is not Parameter.empty:
        kind = parameter.annotation
    limits = ConfigDict(arbitrary_types_allowed=True, allow_inf_nan=False)
    try:
        return TypeAdapter(kind, config=limits).validate_strings(text)
    except ValidationError as error:
        reason = error.errors()[0]["msg"]
        raise SettingsError(f"strategy.arguments has {key}={text}: {reason}") from None


def _check_clients(settings: Settings, strategy: Strategy) -> None:
    """Refuse fewer clients in a round than a strategy waits for, or than outvote a hostile one."""
    rules: list[tuple[type[Strategy], Callable[[Any], int], str]] = [
        (Bulyan, lambda s: 4 * s.num_malicious_nodes + 3, "4 num_malicious_nodes + 3"),
        (MultiKrum, lambda s: 2 * s.num_malicious_nodes + 3, "2 num_malicious_nodes + 3"),
        (FedTrimmedAvg, lambda s: math.ceil(round(1 / s.beta, 9)) if s.beta else 1, "1 / beta"),
        (FedMedian, lambda s: 3, "3"),
        (FedAvg, lambda s: max(s.min_train_nodes, s.min_available_nodes), "min_train_nodes"),
    ]
    per_round = settings.clients_per_round or settings.clients
    for kind, count, words in rules:
        if isinstance(strategy, kind) and per_round < (least := count(strategy)):
            raise SettingsError(
                f"{per_round} clients train in a round, {settings.strategy.name} needs {least} or "
                f"more: {words}; raise clients or clients-per-round, or change strategy.arguments"
            )
