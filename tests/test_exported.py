"""The packages' public names; `sims` offers its modules."""

import inspect
from importlib import import_module
from types import ModuleType

import pytest

PACKAGES = ["fedcel", "strategies", "clients"]


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
