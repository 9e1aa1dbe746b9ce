"""The reference of all settings: what each one does, its default, type and range in words."""

from collections.abc import Iterator, Sequence
from types import UnionType
from typing import Annotated, Literal, NamedTuple, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from fedcel.settings.run_settings import Settings
from fedcel.settings_table import Kind, Options, Words

TYPE_WORDS = {int: "whole number", float: "number", str: "text", bool: "true or false"}
BOUND_SIGNS = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}


class Setting(NamedTuple):
    """Reference of one setting.

    Attributes:
        key: Dotted key.
        default: Its default.
        description: One sentence of what it does.
        type: Type and range in words.
        kinds: Names of the kinds that have it, ":" for an import string; empty: all have it.
    """

    key: str
    default: object
    description: str
    type: str
    kinds: tuple[str, ...] = ()


def describe_settings(model: type[Options] | type[Settings] = Settings) -> Iterator[Setting]:
    """List every setting.

    Args:
        model: The settings, or a table of them.

    Yields:
        The reference of each key; one that several kinds of a part share comes once.
    """
    for field in model.model_fields.values():
        table = field.annotation
        if isinstance(table, type) and issubclass(table, Kind):
            yield from _describe_kinds(table)
        elif isinstance(table, type) and issubclass(table, Options):
            for setting in describe_settings(table):
                yield setting._replace(
                    key=setting.key if "." in setting.key else f"{field.alias}.{setting.key}"
                )
        else:
            yield _describe_field(str(field.alias), field)


def _describe_kinds(family: type[Kind]) -> Iterator[Setting]:
    """List the keys of all kinds of a part, each once."""
    kinds_of = family.list_keys()
    classes = (family, *family.kinds.values())
    fields = {
        str(field.alias): field
        for model in reversed(classes)
        for field in model.model_fields.values()
    }
    names = [name for name in family.kinds if name != ":"]
    for key in {str(f.alias): 0 for model in classes for f in model.model_fields.values()}:
        setting = _describe_field(f"{family.table}.{key}", fields[key])
        if key == family.selector:
            imported = ", or package.module:object" if ":" in family.kinds else ""
            yield setting._replace(type=", ".join(names) + imported)
        else:
            is_common = len(kinds_of[key]) == len(family.kinds)
            yield setting._replace(kinds=() if is_common else tuple(kinds_of[key]))


def _describe_field(key: str, field: FieldInfo) -> Setting:
    words = describe_type(field.annotation, field.metadata)
    return Setting(key, field.default, str(field.description), words)


def _list_selectors(model: type[Options] | type[Settings] = Settings) -> dict[str, type[Kind]]:
    selectors: dict[str, type[Kind]] = {}
    for field in model.model_fields.values():
        table = field.annotation
        if isinstance(table, type) and issubclass(table, Kind):
            selectors[f"{table.table}.{table.selector}"] = table
        elif isinstance(table, type) and issubclass(table, Options):
            selectors |= _list_selectors(table)
    return selectors


SELECTORS = _list_selectors()
"""Parts that come in kinds, by the key that selects the kind."""


def describe_type(annotation: object, metadata: Sequence[object] = ()) -> str:
    """Describe in plain words what a setting takes, such as "number > 0, or none"."""
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
