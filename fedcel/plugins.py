"""A user's own part, named by an import string."""

from difflib import get_close_matches
from importlib import import_module

from fedcel.errors import FedcelError, PluginError


def load_object(ref: str) -> object:
    """Return what "package.module:object" names; PluginError names the wrong part."""
    path, _, name = ref.partition(":")
    if not all(part.isidentifier() for part in [*path.split("."), name]):
        raise PluginError(f"{ref!r} is not of the form 'package.module:object'")
    try:
        found = vars(import_module(path))
    except ModuleNotFoundError as error:
        if not f"{path}.".startswith(f"{error.name}."):
            raise  # the plug-in exists; something it imports does not
        raise PluginError(f"{ref!r}: no module {error.name!r}; install its package") from error
    if name not in found:
        near = get_close_matches(name, found, 1)
        hint = f"; did you mean {near[0]!r}?" if near else f"; look for its name in {path}"
        raise PluginError(f"{ref!r}: no {name!r}{hint}")
    return found[name]


def make_part(setting: str, ref: str, *given: object) -> object:
    """Return what the user's object, named by `setting`, makes of these.

    PluginError where it cannot be called, or refuses what it is given with a TypeError or
    ValueError.
    """
    found = load_object(ref)
    if not callable(found):
        raise PluginError(f"{setting} {ref!r} cannot be called; name a class or a function")
    try:
        return found(*given)
    except FedcelError:
        raise
    except (TypeError, ValueError) as error:
        kinds = ", ".join(type(part).__name__ for part in given)
        raise PluginError(
            f"{setting} {ref!r}, called with ({kinds}), failed: {error}; see docs/own-parts.md for "
            "what it has to take"
        ) from error
