"""The reference of all settings: what each one does, its default, type and range in words."""

from collections.abc import Iterator, Sequence
from types import UnionType
from typing import Annotated, Literal, Union, get_args, get_origin

from pydantic import BaseModel

from fedcel.settings.group_base import Words
from fedcel.settings.run_settings import Settings

TYPE_WORDS = {int: "whole number", float: "number", str: "text", bool: "true or false"}
BOUND_SIGNS = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}


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
