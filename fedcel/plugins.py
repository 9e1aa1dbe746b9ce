"""A user's own part, named by an import string."""

from difflib import get_close_matches
from importlib import import_module

from fedcel.errors import PluginError


def load(ref: str) -> object:
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
