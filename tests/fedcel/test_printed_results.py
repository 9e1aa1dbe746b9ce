"""What the library returns can be printed: three lines at most, and no table of numbers."""

import dataclasses
import importlib
import inspect
import pkgutil
import re
import sys
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import nn

import fedcel
from fedcel.short_repr import summarise_record

SUBPACKAGES = ("losses.cel", "losses.defences", "privacy.ledger")
MAX_CHARACTERS = 600


def list_packages() -> Iterator[object]:
    """Yield `fedcel` and the packages whose names are public."""
    yield fedcel
    names = [found.name for found in pkgutil.iter_modules(fedcel.__path__) if found.ispkg]
    for name in [*names, *SUBPACKAGES]:
        if name != "testing":
            yield importlib.import_module(f"fedcel.{name}")


def list_returned(function: object) -> Iterator[type]:
    annotation = getattr(function, "__annotations__", {}).get("return", "")
    names = getattr(function, "__globals__", {})
    yield from find_classes(annotation, names)


def find_classes(annotation: object, names: dict[str, object]) -> Iterator[type]:
    for word in re.findall(r"\w+", annotation if isinstance(annotation, str) else str(annotation)):
        found = names.get(word)
        if isinstance(found, type) and found.__module__.startswith("fedcel"):
            yield found
    if isinstance(annotation, type) and annotation.__module__.startswith("fedcel"):
        yield annotation


def list_results() -> set[type]:
    """Return the public classes, and those that public functions and methods return."""
    results: set[type] = set()
    for package in list_packages():
        for name in getattr(package, "__all__", ()):
            public = getattr(package, name)
            if isinstance(public, type) and public.__module__.startswith("fedcel"):
                results.add(public)
                for member in vars(public).values():
                    member = getattr(member, "__func__", member)
                    if inspect.isfunction(member):
                        results.update(list_returned(member))
            elif inspect.isfunction(public):
                results.update(list_returned(public))
    return results


def is_record(kind: type) -> bool:
    """Say whether a class is a named tuple or a dataclass."""
    return hasattr(kind, "_fields") or dataclasses.is_dataclass(kind)


def list_fields(kind: type) -> dict[str, object]:
    return {
        name: annotation
        for base in reversed(kind.__mro__)
        for name, annotation in vars(base).get("__annotations__", {}).items()
        if "ClassVar" not in str(annotation)
    }


def make_record(kind: type) -> object | None:
    """Make a record with long tensors and networks in its fields; None where it has none."""
    values: dict[str, object] = {}
    is_large = False
    for name, annotation in list_fields(kind).items():
        text = str(annotation)
        parts = [
            part
            for part in find_classes(annotation, vars(sys.modules[kind.__module__]))
            if part is not kind and is_record(part) and "__str__" not in vars(part)
        ]
        values[name] = None
        if "Callable" in text:
            continue
        if "Tensor" in text:
            values[name] = torch.zeros(50, 3, 8)
        elif any(
            issubclass(c, nn.Module)
            for c in find_classes(annotation, vars(sys.modules[kind.__module__]))
        ):
            values[name] = nn.Sequential(*(nn.Linear(2, 2) for _ in range(9)))
        elif parts:
            values[name] = make_record(parts[0])
        is_large = is_large or values[name] is not None
    if not is_large:
        return None
    if hasattr(kind, "_make"):
        return kind._make(values[name] for name in kind._fields)
    record = object.__new__(kind)
    for name, value in values.items():
        object.__setattr__(record, name, value)
    return record


LARGE = sorted(
    (
        kind
        for kind in list_results()
        if is_record(kind) and "__str__" not in vars(kind) and make_record(kind) is not None
    ),
    key=lambda kind: kind.__qualname__,
)


def test_the_walk_finds_what_users_meet() -> None:
    """Results of functions, of methods, and records inside records."""
    names = {kind.__name__ for kind in LARGE}
    assert {"UncertainPrediction", "Prediction", "Splits", "Images", "OptimalLeak", "Term"} <= names


@pytest.mark.parametrize("kind", LARGE, ids=lambda kind: kind.__name__)
def test_a_result_prints_no_tensors(kind: type) -> None:
    """In three lines at most: shapes in the place of numbers."""
    printed = str(make_record(kind))
    assert len(printed.splitlines()) <= 3 and len(printed) < MAX_CHARACTERS
    assert "tensor(" not in printed and "Linear(" not in printed


def test_values_are_shown_short() -> None:
    """By hand: one number stays a number, lists say how many there are."""

    @dataclasses.dataclass(repr=False)
    class Found:
        loss: torch.Tensor
        rows: np.ndarray
        parts: list[int]
        share: float
        name: str
        net: nn.Module

        __repr__ = summarise_record

    found = Found(
        torch.tensor(0.5), np.zeros((2, 3)), [1, 2, 3, 4], 1 / 3, "x" * 99, nn.Linear(2, 2)
    )
    assert str(found) == (
        "Found(loss=0.5, rows=float64[2, 3], parts=[1, 2, 3, ... 4 in all], share=0.3333, "
        f"name='{'x' * 56}..., net=Linear)"
    )
