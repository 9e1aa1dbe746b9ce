"""A user's own part, named by an import string."""

from difflib import get_close_matches
from importlib import import_module

from fedcel.errors import FedcelError, PluginError


def load_object(ref: str) -> object:
    """Load what an import string names.

    Args:
        ref: "package.module:object".

    Returns:
        The object.

    Raises:
        PluginError: Says which part of the string is wrong.
    """
    path, _, name = ref.partition(":")
    if not all(part.isidentifier() for part in [*path.split("."), name]):
        raise PluginError(f"{ref!r} is not of the form 'package.module:object'")
    try:
        objects = vars(import_module(path))
    except ModuleNotFoundError as error:
        if not f"{path}.".startswith(f"{error.name}."):
            raise  # the plug-in exists; something it imports does not
        raise PluginError(f"{ref!r}: no module {error.name!r}; install its package") from error
    if name not in objects:
        nearest = get_close_matches(name, objects, 1)
        hint = f"; did you mean {nearest[0]!r}?" if nearest else f"; look for its name in {path}"
        raise PluginError(f"{ref!r}: no {name!r}{hint}")
    return objects[name]


def make_part(setting: str, ref: str, *arguments: object) -> object:
    """Make a part of a run by a user's class or function.

    Args:
        setting: The setting that names it, for messages.
        ref: Its import string.
        arguments: What it is called with.

    Returns:
        What it makes.

    Raises:
        PluginError: It cannot be called, or refuses the arguments with a TypeError or ValueError.
    """
    maker = load_object(ref)
    if not callable(maker):
        raise PluginError(f"{setting} {ref!r} cannot be called; name a class or a function")
    try:
        return maker(*arguments)
    except FedcelError:
        raise
    except (TypeError, ValueError) as error:
        kinds = ", ".join(type(argument).__name__ for argument in arguments)
        raise PluginError(
            f"{setting} {ref!r}, called with ({kinds}), failed: {error}; see docs/own-parts.md for "
            "what it has to take"
        ) from error
