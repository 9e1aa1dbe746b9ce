"""The packages' public names; `sims` offers its modules."""

import inspect
import pkgutil
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from fedcel import Ledger, Run

PACKAGES = ["fedcel", "strategies", "clients"]
SUBPACKAGES = [
    module.name
    for package in ("fedcel", "clients")
    for module in pkgutil.walk_packages(import_module(package).__path__, f"{package}.")
    if module.ispkg
]
DOCUMENTED = ["sims.engines.simulate:simulate", "sims.attacking:attack_run"]
DOCUMENTED += ["sims.bench.run_bench:run_bench"]
"""Functions of `sims` on the page of the API."""
MADE_BY_OTHERS = (Run, Ledger)
"""Records that a function makes, with paths that it has converted."""


@pytest.mark.parametrize("name", PACKAGES)
def test_all_is_complete_sorted_and_documented(name: str) -> None:
    """What a package's __init__ offers is in __all__, and each name has a docstring."""
    package = import_module(name)
    loaded = {
        key
        for key, value in vars(package).items()
        if not key.startswith("_") and not isinstance(value, ModuleType)
    }
    assert loaded - {"TYPE_CHECKING"} <= set(package.__all__)
    assert list(package.__all__) == sorted(package.__all__)
    for key in package.__all__:
        assert inspect.getdoc(getattr(package, key)), key


def list_calls() -> Iterator[tuple[str, object]]:
    """Yield the functions, classes and methods that packages offer, by name."""
    offers = [
        (f"{name}.{key}", getattr(package, key))
        for name in (*PACKAGES, *SUBPACKAGES)
        for package in [import_module(name)]
        for key in getattr(package, "__all__", ())
    ]
    for reference in DOCUMENTED:
        module, _, key = reference.partition(":")
        offers.append((reference, getattr(import_module(module), key)))
    for name, offer in offers:
        if offer not in MADE_BY_OTHERS:
            yield name, offer
        if inspect.isclass(offer):
            for key in vars(offer).keys() - {"__init__", "__new__"}:
                if not key.startswith("_") and callable(getattr(offer, key)):
                    yield f"{name}.{key}", getattr(offer, key)


def test_every_argument_that_is_a_path_takes_a_string() -> None:
    """By its annotation, which mypy compares with what the function does."""
    refused, count = set[str](), 0
    for name, call in list_calls():
        try:
            parameters = inspect.signature(call).parameters.values()  # type: ignore[arg-type]
        except (TypeError, ValueError):  # a class of C, or none
            continue
        for parameter in parameters:
            annotation = parameter.annotation
            kinds = getattr(annotation, "__args__", (annotation,))
            if Path in kinds:
                count += 1
                if str not in kinds:
                    refused.add(f"{name}({parameter.name})")
    assert count >= 20
    assert refused == set()
