"""Import strings."""

import math
from pathlib import Path

import pytest

from fedcel.errors import FailedError, PluginError
from fedcel.own_parts import blame_own_parts, list_own_parts
from fedcel.plugins import PartName, check_contract, load_object, make_part, require
from fedcel.settings import parse_settings


def test_finds_an_object() -> None:
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
    with pytest.raises(PluginError, match=message):
        load_object(ref)


def test_a_module_that_fails_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its file and line; so is one that needs what is not installed."""
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "part_that_divides.py").write_text("x = 1\ny = x / 0\n")
    (tmp_path / "part_that_needs.py").write_text("import no_such_package\n")
    words = r"import of 'part_that_divides' failed: ZeroDivisionError: .*divides.py, line 2"
    with pytest.raises(PluginError, match=words):
        load_object("part_that_divides:x")
    with pytest.raises(PluginError, match=r"No module named 'no_such_package' \(.*needs.py, line"):
        load_object("part_that_needs:x")


def fail(*arguments: object) -> object:
    """Raise in the user's own code."""
    raise LookupError("no table")


@pytest.mark.parametrize("ref", ["clients:build", "clients.mine:build"])
def test_a_file_that_another_module_hides_is_named(
    ref: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user's own `clients.py` has the name of a package of fedcel's."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "clients.py").write_text("def build(): ...\n")
    words = r"__init__.py of the same name hides .*/clients.py: rename yours"
    with pytest.raises(PluginError, match=words):
        load_object(ref)


def test_what_a_part_raises_when_made_is_refused() -> None:
    """Any error, with its line."""
    with pytest.raises(PluginError, match=r"called with \(int\), failed: LookupError: .*py"):
        make_part("cel.kind", f"{__name__}:fail", 3)


def test_errors_are_blamed_on_the_part_that_they_came_from() -> None:
    """By the module of the innermost line; others stay what they are."""
    settings = parse_settings({"net.name": f"{__name__}:fail", "cel.kind": "plain"})
    assert [part.setting for part in list_own_parts(settings)] == ["net.name"]
    with (
        pytest.raises(FailedError, match="net.name '.*:fail' failed: LookupError: no table"),
        blame_own_parts(settings),
    ):
        fail()
    with pytest.raises(PluginError), blame_own_parts(settings):
        raise PluginError("said already")
    with pytest.raises(LookupError), blame_own_parts(parse_settings({})):
        fail()


def test_a_line_that_two_checks_find_is_said_once() -> None:
    """A part that returns the wrong type breaks the same line in nearly every check."""

    def check(case: object) -> None:
        require(False, f"{case} must be something")

    part = PartName("cel.kind", "mine:Loss", "check_cel")
    with pytest.raises(PluginError, match="contract: it must be something; see docs"):
        check_contract(part, (check, check), "it")
