"""A user's own part, named by an import string: loaded, made, held to its contract, and blamed."""

from collections.abc import Callable, Iterable
from difflib import get_close_matches
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple, TypeVar, cast

from fedcel.errors import (
    ContractError,
    FailedError,
    FedcelError,
    PluginError,
    describe_module_origin,
    describe_unforeseen,
)
from fedcel.extras import missing_extra_error

PAGE = "docs/how-to/write-own-parts.md"
Case = TypeVar("Case")
Part = TypeVar("Part")


class PartName(NamedTuple):
    """Part of a user's own: how errors name it, and where its contract stands.

    Attributes:
        setting: The setting that names the part, such as `cel.kind`.
        ref: Its import string.
        check: The function of `fedcel.testing` that holds its whole contract.
    """

    setting: str
    ref: str
    check: str

    def __str__(self) -> str:
        """Return setting and import string."""
        return f"{self.setting} {self.ref!r}"

    def describe_break(self, line: str) -> str:
        """Describe which line of its contract the part breaks."""
        return f"{self} breaks its contract: {line}; {self.describe_remedy()}"

    def describe_failure(self, error: BaseException) -> str:
        """Describe what the part raised, and where in the user's file."""
        origin = describe_module_origin(error, self.ref.partition(":")[0])
        where = f" ({origin})" if origin else ""
        return f"{self} failed: {describe_unforeseen(error)}{where}; {self.describe_remedy()}"

    def describe_remedy(self) -> str:
        """Describe where the contract stands and how to test a part by itself."""
        return f"see {PAGE}, and test it with fedcel.testing.{self.check}"


def require(holds: bool, line: str) -> None:
    """Raise ContractError with a line of a contract unless it holds."""
    if not holds:
        raise ContractError(line)


def check_contract(part: PartName, checks: Iterable[Callable[[Case], None]], case: Case) -> None:
    """Hold a part to the short form of its contract; PluginError where a check of `case` fails."""
    try:
        hold_contract(checks, case)
    except ContractError as error:
        raise PluginError(part.describe_break(str(error))) from error
    except Exception as error:
        raise PluginError(part.describe_failure(error)) from error


def hold_contract(checks: Iterable[Callable[[Case], None]], case: Case) -> None:
    """Raise ContractError with all lines that `case` breaks, or another error of a check."""
    broken, failure = find_breaks(checks, case)
    if broken:
        raise ContractError("; ".join(dict.fromkeys(map(str, broken)))) from broken[0]
    if failure:
        raise failure


def find_breaks(
    checks: Iterable[Callable[[Case], None]], case: Case
) -> tuple[list[ContractError], Exception | None]:
    """Find all lines of a contract that a part breaks; if none, another error of a check."""
    broken: list[ContractError] = []
    for check in checks:
        try:
            check(case)
        except ContractError as error:
            broken.append(error)
        except Exception as error:
            if not broken:  # it may follow from the line before
                return [], error
    return broken, None


def guard_part(part: PartName, part_object: Part, **checks: Callable[..., object]) -> Part:
    """Guard a user's object, so that whatever goes wrong in a run names it.

    `checks` has for each method of its protocol a function that checks a result and returns it.
    The methods of the guard raise FailedError where the user's raises or returns wrongly.
    """

    def guard(method: str, check: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object) -> object:
            try:
                return check(getattr(part_object, method)(*arguments))
            except ContractError as error:
                raise FailedError(part.describe_break(str(error))) from error
            except FedcelError:
                raise
            except Exception as error:
                raise FailedError(part.describe_failure(error)) from error

        return call

    return cast(Part, SimpleNamespace(**{name: guard(name, c) for name, c in checks.items()}))


def load_object(ref: str) -> object:
    """Load "package.module:object", or "package.module:object.attribute".

    Raises:
        PluginError: Says which part of the string is wrong, or where its module fails.
        MissingExtraError: Its module needs a package that an extra brings.
    """
    path, _, dotted = ref.partition(":")
    name, *attributes = dotted.split(".")
    if not all(part.isidentifier() for part in [*path.split("."), name, *attributes]):
        raise PluginError(f"{ref!r} is not of the form 'package.module:object'")
    try:
        objects = vars(import_module(path))
    except FedcelError:
        raise
    except Exception as error:
        if isinstance(error, ModuleNotFoundError):
            if f"{path}.".startswith(f"{error.name}."):
                remedy = _describe_hidden(path) or "; install its package"
                raise PluginError(f"{ref!r}: no module {error.name!r}{remedy}") from error
            if missing := missing_extra_error(error.name or ""):
                raise missing from error
        origin = describe_module_origin(error, path)
        raise PluginError(
            f"{ref!r}: the import of {path!r} failed: {describe_unforeseen(error)}"
            f"{f' ({origin})' if origin else ''}; mend the module"
        ) from error
    if name not in objects:
        nearest = get_close_matches(name, objects, 1)
        hint = f"; did you mean {nearest[0]!r}?" if nearest else f"; look for its name in {path}"
        raise PluginError(f"{ref!r}: no {name!r}{_describe_hidden(path) or hint}")
    loaded = objects[name]
    for attribute in attributes:
        if not hasattr(loaded, attribute):
            nearest = get_close_matches(attribute, dir(loaded), 1)
            hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
            raise PluginError(f"{ref!r}: {type(loaded).__name__} has no {attribute!r}{hint}")
        loaded = getattr(loaded, attribute)
    return loaded


def _describe_hidden(path: str) -> str:
    """Describe which file of the working folder another module of its name hides; or nothing."""
    name = path.partition(".")[0]
    user_spec = PathFinder.find_spec(name, [str(Path.cwd())])
    loaded_spec = find_spec(name)
    if user_spec is None or loaded_spec is None or user_spec.origin in (None, loaded_spec.origin):
        return ""
    return f"; {loaded_spec.origin} of the same name hides {user_spec.origin}: rename yours"


def make_part(setting: str, ref: str, *arguments: object) -> object:
    """Make a part of a run by a user's class or function; PluginError where that fails."""
    maker = load_object(ref)
    if not callable(maker):
        raise PluginError(f"{setting} {ref!r} cannot be called; name a class or a function")
    try:
        return maker(*arguments)
    except FedcelError:
        raise
    except Exception as error:
        kinds = ", ".join(type(argument).__name__ for argument in arguments)
        origin = describe_module_origin(error, ref.partition(":")[0])
        raise PluginError(
            f"{setting} {ref!r}, called with ({kinds}), failed: {describe_unforeseen(error)}"
            f"{f' ({origin})' if origin else ''}; see {PAGE} for what it has to take"
        ) from error
