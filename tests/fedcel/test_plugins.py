"""Import strings."""

import math

import pytest

from fedcel.errors import PluginError
from fedcel.plugins import load_object


def test_finds_an_object() -> None:
    """The object itself."""
    assert load_object("math:pi") == math.pi


@pytest.mark.parametrize(
    ("ref", "message"),
    [
        ("math.pi", "not of the form"),
        ("../math:pi", "not of the form"),
        ("no_such_package.part:thing", "no module 'no_such_package'; install its package"),
        ("math:pie", "no 'pie'; did you mean 'pi'"),
        ("math:zzzzzz", "look for its name in math"),
    ],
)
def test_a_wrong_part_is_named(ref: str, message: str) -> None:
    """Which part, and what to do."""
    with pytest.raises(PluginError, match=message):
        load_object(ref)
