"""Settings read from TOML tables or flat keys, and what is said of those that cannot be."""

from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from types import UnionType
from typing import Annotated, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from fedcel.errors import SettingsError
from fedcel.settings.group_base import Words
from fedcel.settings.run_settings import Settings, check_settings

Scalar = str | int | float | bool


def flatten_settings(tree: Mapping[str, object], prefix: str = "") -> dict[str, Scalar]:
    """Flatten nested tables to dotted keys: {"cel.weight": 0.1, ...}.

    Args:
        tree: Tables as in a TOML file, or dotted keys already.
        prefix: What is put before each key.

    Returns:
        Every value by its dotted key.

    Raises:
        SettingsError: A value is no scalar.
    """
    flat: dict[str, Scalar] = {}
    for key, value in tree.items():
        path = f"{prefix}{key}"
        if isinstance(value, Mapping):
            flat |= flatten_settings(value, f"{path}.")
        elif isinstance(value, str | int | float | bool):
            flat[path] = value
        else:
            raise SettingsError(
                f"{path} is {value!r}; settings are scalars, write lists as 'a,b,c'"
            )
    return flat


def describe_settings(
    model: type[BaseModel] = Settings, prefix: str = ""
) -> Iterator[tuple[str, object, str, str]]:
    """List every setting.

    Args:
        model: The settings, or a group of them.
        prefix: What is put before each key.

    Yields:
        Key, default, one sentence of what it does, type and range in words.
    """
    for field in model.model_fields.values():
        path = f"{prefix}{field.alias}"
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from describe_settings(kind, f"{path}.")
        else:
            words = describe_type(kind, field.metadata)
            yield path, field.default, str(field.description), words


TYPE_WORDS = {int: "whole number", float: "number", str: "text", bool: "true or false"}
BOUND_SIGNS = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}


def describe_type(annotation: object, metadata: Sequence[object] = ()) -> str:
    """Return in plain words what a setting takes, such as "number > 0, or none".

    Args:
        annotation: The setting's type.
        metadata: pydantic's constraints on it, and this project's, which say it themselves.
    """
    words = next((item.words for item in metadata if isinstance(item, Words)), None)
    if words is not None:
        return words
    if get_origin(annotation) is Annotated:
        inner, *more = get_args(annotation)
        return describe_type(inner, (*more, *metadata))
    if get_origin(annotation) is Literal:
        return ", ".join(str(choice) for choice in get_args(annotation))
    if get_origin(annotation) in (Union, UnionType):
        return ", or ".join(describe_type(choice) for choice in get_args(annotation))
    assert isinstance(annotation, type)
    constraints = [part for item in metadata for part in getattr(item, "metadata", (item,))]
    bounds = [
        f"{sign} {getattr(constraint, name):g}"
        for constraint in constraints
        for name, sign in BOUND_SIGNS.items()
        if hasattr(constraint, name)
    ]
    return f"{TYPE_WORDS[annotation]} {' and '.join(bounds)}".strip()


def parse_settings(raw: Mapping[str, object]) -> Settings:
    """Check the settings of a run.

    Example:
        >>> settings = parse_settings({"cel.kind": "cluster", "rounds": 20})
        >>> settings.cel.kind, settings.clients
        ('cluster', 8)

    Args:
        raw: Nested tables as in a TOML file, or flat dotted keys. What is left out has its default.

    Returns:
        The settings of a run, all of them.

    Raises:
        SettingsError: One line a problem: what, its value, what is allowed, the nearest name.
    """
    flat = flatten_settings(raw)
    known_keys = [key for key, *_ in describe_settings()]
    for key in sorted(flat.keys() - set(known_keys)):
        near = get_close_matches(key, known_keys, 1, cutoff=0)
        raise SettingsError(f"unknown setting {key!r}; did you mean {near[0]!r}?")
    tree: dict[str, object] = {}
    for key, value in flat.items():
        group, _, name = key.rpartition(".")
        table = tree.setdefault(group, {}) if group else tree
        assert isinstance(table, dict)
        table[name] = value
    try:
        settings = Settings.model_validate(tree)
    except ValidationError as error:
        raise SettingsError(_describe_problems(error, known_keys)) from None
    check_settings(settings)
    return settings


LIMITS = {
    "bool_parsing": "true or false",
    "finite_number": "finite",
    "float_parsing": "a number",
    "greater_than": "above {gt:g}",
    "greater_than_equal": "{ge:g} or more",
    "int_from_float": "a whole number",
    "int_parsing": "a whole number",
    "less_than": "below {lt:g}",
    "less_than_equal": "{le:g} or less",
    "literal_error": "{expected}",
}
"""What pydantic's kinds of error mean for a value, in words."""


def _describe_problems(error: ValidationError, known_keys: Sequence[str]) -> str:
    """Return a line a setting: its value, and what it must be."""
    names = {part for key in known_keys for part in key.split(".")}
    limits: dict[str, list[str]] = {}
    for problem in error.errors():
        key = ".".join(part for part in problem["loc"] if isinstance(part, str) and part in names)
        context, words = problem.get("ctx", {}), problem["msg"].removeprefix("Input should be ")
        if "error" in context:  # of a validator of this project
            words = str(context["error"]).removeprefix("must be ")
        elif problem["type"] in LIMITS:
            words = LIMITS[problem["type"]].format(**context)
        limits.setdefault(f"{key} is {problem['input']!r}", []).append(words)
    return "\n".join(f"{value}, must be {', or '.join(words)}" for value, words in limits.items())


def dump_settings(settings: Settings) -> dict[str, object]:
    """Return settings as tables for a TOML file.

    Args:
        settings: Of a run.

    Returns:
        Nested tables with kebab-case keys, which `parse_settings` reads back unchanged.
    """
    return settings.model_dump(by_alias=True)
