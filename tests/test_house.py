"""The house keeps its order: imports through packages, names that say something, docstrings."""

import ast
import inspect
import re
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
HOUSES = ("fedcel", "strategies", "clients", "sims")
SOURCES = sorted(path for house in HOUSES for path in (ROOT / house).rglob("*.py"))
EMPTY_NAMES = {
    "asked", "back", "drawn", "each", "found", "given", "got", "held", "here", "kept",
    "known", "left", "made", "meant", "mine", "one", "own", "rest", "said", "seen", "some",
    "taken", "theirs", "there", "told", "wanted", "whose",
}  # fmt: skip
"""Say nothing of what they hold."""
MOST_POSITIONAL = 4
SUBJECTS = [
    ".".join(path.parent.relative_to(ROOT).parts)
    for path in SOURCES
    if path.name == "__init__.py"
    and path.is_relative_to(ROOT / "fedcel")
    and path.parent.name != "testing"
]


@cache
def parse(path: Path) -> ast.Module:
    """Return a file's syntax tree."""
    return ast.parse(path.read_text(), str(path))


def module_of(path: Path) -> str:
    """Return the dotted name of a source file."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def family(module: str) -> str:
    """Return whose inside a module is: the second part of its name, as `fedcel.losses`."""
    return ".".join(module.split(".")[:2])


MODULES = {module_of(path) for path in SOURCES}
PACKAGES = {module_of(path) for path in SOURCES if path.name == "__init__.py"}


def imports_past(path: Path) -> Iterator[str]:
    """Yield imports that reach into the file of another subject of the core."""
    if path == ROOT / "fedcel" / "__init__.py":
        return  # the public names; type checkers take a function for the module of its name
    for node in ast.walk(parse(path)):
        if not isinstance(node, ast.ImportFrom) or node.module not in MODULES - PACKAGES:
            continue
        subject = node.module.rpartition(".")[0]
        if subject in SUBJECTS[1:] and family(module_of(path)) != family(node.module):
            yield f"{path.relative_to(ROOT)}:{node.lineno} imports from {node.module}"


def test_a_subject_is_imported_through_what_it_offers() -> None:
    """`from fedcel.nets import FlatNet`, wherever in the subject it is defined."""
    assert [line for path in SOURCES for line in imports_past(path)] == []


def bound_names(path: Path) -> Iterator[tuple[str, int]]:
    """Yield each name that a file binds: variables, arguments, functions; and its line."""
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node.lineno
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name, node.lineno


def test_names_say_what_they_hold() -> None:
    """No variable, argument or function is a bare participle or pronoun."""
    empty = [
        f"{path.relative_to(ROOT)}:{line} {name}"
        for path in SOURCES
        for name, line in bound_names(path)
        if name.strip("_") in EMPTY_NAMES
    ]
    assert empty == []


def positional(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return how many arguments a call may give by position, `self` not counted."""
    names = [arg.arg for arg in (*node.args.posonlyargs, *node.args.args)]
    return len(names) - (names[:1] in (["self"], ["cls"]))


def test_arguments_beyond_four_are_given_by_name() -> None:
    """But of protocols that users' own parts implement, and of PyTorch's."""
    protocols = {"reconstruct", "loss", "step", "update", "create_message", "_load_from_state_dict"}
    many = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"
        for path in SOURCES
        if "commands" not in path.relative_to(ROOT).parts  # theirs are those of the command line
        for node in ast.walk(parse(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and positional(node) > MOST_POSITIONAL
        and node.name not in protocols
    ]
    assert many == []


def test_docstrings_begin_with_their_subject() -> None:
    """A noun of the field or a verb with its object; predicates begin with Whether."""
    first_word = re.compile(r"(What|Who|Whose|Which|How|Where|Say)\b")
    wrong = [
        f"{path.relative_to(ROOT)} {getattr(node, 'name', '')}"
        for path in SOURCES
        for node in ast.walk(parse(path))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and first_word.match(ast.get_docstring(node) or "")
    ]
    assert wrong == []


@pytest.mark.parametrize("subject", SUBJECTS)
def test_what_a_subject_offers_is_documented(subject: str) -> None:
    """Each function says its arguments and what it returns; each type what it is for."""
    package = import_module(subject)
    lacking = []
    for name in package.__all__:
        value = getattr(package, name)
        if inspect.isclass(value):
            lacking += [] if inspect.getdoc(value) else [name]
        elif inspect.isfunction(value):
            text = inspect.getdoc(value) or ""
            signature = inspect.signature(value)
            sections = ["Args:"] * bool(signature.parameters)
            sections += ["Returns:"] * (signature.return_annotation not in (None, "None"))
            sections = [
                s for s in sections if s not in text and s.replace("Returns", "Yields") not in text
            ]
            missing = [p for p in signature.parameters if not re.search(rf"\b{p}\b.*:", text)]
            lacking += [f"{name}: {' '.join(sections + missing)}"] if sections or missing else []
    assert lacking == []
