"""What a strategy of Flower's takes, and the values of `strategy.arguments` for it."""

import inspect
import math
from collections.abc import Callable, Mapping
from types import NoneType
from typing import Any, NamedTuple, get_args

from fedcel.errors import SettingsError

_KEYWORDS = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_TRUTH = {"true": True, "false": False}


class Signature(NamedTuple):
    """What a class or a function takes by name."""

    parameters: Mapping[str, inspect.Parameter]
    required: frozenset[str]
    """Those without a default of its own; what a class hands on may be given by the class."""
    is_open: bool
    """Whether it is a function that takes names beyond these."""


def read_signature(factory: Callable[..., Any]) -> Signature:
    """Read what a class or a function takes by name.

    What a class hands on by `**kwargs` goes to the next class in the order of inheritance, so that
    its arguments count as well.

    Args:
        factory: Makes a strategy.

    Returns:
        All names, those that must be given, and whether others can be.
    """
    if not isinstance(factory, type):
        parameters = _read_parameters(factory)
        return Signature(
            _select_keywords(parameters), _find_required(parameters), _hands_on(parameters)
        )
    layers = [
        _read_parameters(vars(base)["__init__"])[1:]  # without self
        for base in factory.__mro__
        if "__init__" in vars(base) and base is not object
    ]
    names: dict[str, inspect.Parameter] = {}
    for layer in layers:
        names = {**_select_keywords(layer), **names}
        if not _hands_on(layer):
            break
    return Signature(names, _find_required(layers[0] if layers else []), is_open=False)


def convert_argument(name: str, text: str, parameter: inspect.Parameter | None) -> object:
    """Convert an argument to the type that a parameter is annotated with.

    Args:
        name: Of the argument.
        text: Its value in `strategy.arguments`.
        parameter: None where a function takes whatever it is given.

    Returns:
        A number, a truth value, text or None.

    Raises:
        SettingsError: The text is no such value, or the parameter takes none that a text can name.
    """
    kinds = _list_kinds(parameter)
    if NoneType in kinds and text == "none":
        return None
    for kind in (bool, int, float, str):
        if kind in kinds and (value := _convert(text, kind)) is not None:
            return value
    if not kinds & {bool, int, float, str}:
        raise SettingsError(
            f"strategy.arguments gives {name}, which takes no number and no text; name a function "
            "of your own that returns the strategy"
        )
    words = {bool: "true or false", int: "a whole number", float: "a finite number", str: "text"}
    allowed = " or ".join(word for kind, word in words.items() if kind in kinds)
    raise SettingsError(f"strategy.arguments has {name}={text}, {name} must be {allowed}")


def _convert(text: str, kind: type) -> object:
    """Return a text as a value of this type, None where it is none."""
    if kind is bool:
        return _TRUTH.get(text)
    try:
        value = kind(text)
    except ValueError:
        return None
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _list_kinds(parameter: inspect.Parameter | None) -> set[object]:
    """Return the types that a parameter takes; without an annotation, that of its default."""
    kind = inspect.Parameter.empty if parameter is None else parameter.annotation
    if kind not in (inspect.Parameter.empty, Any) and not isinstance(kind, str):
        return set(get_args(kind)) or {kind}
    default = None if parameter is None else parameter.default
    if isinstance(default, bool | int | float | str):
        return {float, int} if isinstance(default, float) else {type(default)}
    return {bool, int, float, str}


def _read_parameters(factory: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(factory, eval_str=True).parameters.values())
    except Exception:  # an annotation that only a type checker understands
        return list(inspect.signature(factory).parameters.values())


def _select_keywords(parameters: list[inspect.Parameter]) -> dict[str, inspect.Parameter]:
    return {parameter.name: parameter for parameter in parameters if parameter.kind in _KEYWORDS}


def _find_required(parameters: list[inspect.Parameter]) -> frozenset[str]:
    empty = inspect.Parameter.empty
    return frozenset(
        k for k, parameter in _select_keywords(parameters).items() if parameter.default is empty
    )


def _hands_on(parameters: list[inspect.Parameter]) -> bool:
    return any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters)
