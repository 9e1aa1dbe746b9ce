"""Records of many numbers, printed in a line: what there is of each, not the numbers."""

from collections.abc import Mapping, Sequence, Sized
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

import numpy as np
from torch import Tensor, nn

Record = TypeVar("Record")
MAX_ITEMS = 3
"""Items of a list that are shown one by one."""
MAX_CHARACTERS = 60
"""Characters of one value that are shown."""


def show_shapes(kind: type[Record]) -> type[Record]:
    """Print records of a class, a named tuple or a dataclass, by the shapes of their tensors."""
    kind.__repr__ = summarise_record  # type: ignore[method-assign]
    return kind


def summarise_record(record: object) -> str:
    """Describe a record in a line: of tensors their shapes, of lists their lengths."""
    if is_dataclass(record):
        names = [field.name for field in fields(record) if field.repr]
    else:
        names = list(getattr(record, "_fields", ()))
    parts = (f"{name}={describe_value(getattr(record, name))}" for name in names)
    return f"{type(record).__name__}({', '.join(parts)})"


def describe_value(value: Any) -> str:
    """Return a short form of a value."""
    if isinstance(value, Tensor | np.ndarray):
        kind = str(value.dtype).removeprefix("torch.")
        return f"{value.item():.4g}" if value.ndim == 0 else f"{kind}{list(value.shape)}"
    if isinstance(value, nn.Module):
        return type(value).__name__
    if isinstance(value, Mapping):
        shown = [
            f"{key!r}: {describe_value(part)}" for key, part in list(value.items())[:MAX_ITEMS]
        ]
        return f"{{{join_items(shown, value)}}}"
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        shown = [describe_value(part) for part in value[:MAX_ITEMS]]
        return f"[{join_items(shown, value)}]"
    text = f"{value:.4g}" if isinstance(value, float) else repr(value)
    if "tensor(" in text or "\n" in text:
        return f"{type(value).__name__}(...)"
    return text if len(text) <= MAX_CHARACTERS else f"{text[: MAX_CHARACTERS - 3]}..."


def join_items(shown: Sequence[str], value: Sized) -> str:
    """Return the items that are shown, and the number of all where there are more."""
    more = [] if len(value) <= len(shown) else [f"... {len(value)} in all"]
    return ", ".join([*shown, *more])
