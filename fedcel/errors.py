"""Errors that a user's input can cause, and descriptions of unexpected errors."""

import re
from collections.abc import Container, Sequence
from traceback import walk_tb
from unicodedata import category

SHOWN_FRAMES = 2  # of a traceback: the origin of an error and its caller
MAX_TEXT = 2000  # characters of an error that reach a log or another machine
MAX_REASON = 400  # characters of another library's error that are shown inside one of ours
MEMORY_WORDS = re.compile(r"out of memory|allocate memory|bad.alloc", re.IGNORECASE)
_STEERING = ("Cc", "Cf", "Cs", "Zl", "Zp")
"""Unicode categories of invisible characters with an effect."""
_OWN_PACKAGES = {"fedcel", "sims", "clients", "strategies", "torch", "torchvision", "onnxruntime"}
_OWN_PACKAGES |= {"jaxtyping"}  # whose checks wrap functions of this project in tests


class FedcelError(Exception):
    """Base of all errors below; the command line prints it and exits with its status."""

    status = 2
    """Exit status of the command line: the input is wrong."""


class SettingsError(FedcelError, ValueError):
    """A setting is unknown, of the wrong type, out of range or at odds with another."""


class PluginError(FedcelError, ValueError):
    """An import string does not lead to an object."""


class ContractError(PluginError):
    """A user's own part violates the contract of its kind."""


class DataError(FedcelError, ValueError):
    """A data source is missing, damaged or too small."""


class NetError(FedcelError, ValueError):
    """A network cannot be split, averaged or measured."""


class SizeError(NetError):
    """An attack needs more time or memory at this size than it can have."""


class RefusedImagesError(NetError):
    """An encoder cannot process images of this size, number of channels or type."""


class RunError(FedcelError, ValueError):
    """A run folder is missing, exists already, or cannot be read."""


class FailedError(FedcelError, RuntimeError):
    """A failure despite valid input."""

    status = 1


class NoCutError(FedcelError):
    """No cut of a model meets the limits: the answer of a comparison that did not fail."""

    status = 1


class CrashedError(FailedError):
    """A failure of a command of which 1 is an answer."""

    status = 3


class DivergedError(FailedError):
    """Training diverged."""


class RoundError(FailedError):
    """Too few clients sent a valid update."""


class StackingError(FailedError):
    """Clients cannot be trained at once, only one after the other."""


class EngineError(FailedError):
    """Breakdown of the engine that carries messages to clients."""


class LeakError(FedcelError, ValueError):
    """An encoder leaks more than the owner of the images allows."""


class LeakLimitError(LeakError):
    """The messages of a device would together leak more than its owner allows."""


class ServiceError(FedcelError, RuntimeError):
    """A service refuses a query, cannot be reached, or sends an invalid answer."""


class ModelVersionError(ServiceError):
    """A service no longer answers the model version that a message was made for."""


class SpentError(ServiceError):
    """A budget of a service is spent: the client's, or the model version's."""


class LedgerError(FailedError):
    """The ledger cannot be opened, read or written, so no answer may be sent."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out; PyTorch and ONNX Runtime have no common class for this."""
    return isinstance(error, MemoryError) or bool(MEMORY_WORDS.search(str(error)))


def describe_unforeseen(error: BaseException) -> str:
    """Return an error's type and message in one line."""
    try:
        text = " ".join(str(error).split())
    except Exception:  # a class of the user's
        text = "it has no text: its __str__ raises"
    return ": ".join(filter(None, [type(error).__name__, escape_controls(text)]))


def escape_controls(text: str) -> str:
    """Escape control characters, marks of direction and lone surrogates as Python does.

    Tabs and ends of lines stay; the others could control a terminal.
    """
    if text.isprintable():
        return text
    return "".join(
        c.encode("unicode_escape").decode() if category(c) in _STEERING and c not in "\t\n" else c
        for c in text
    )


def replace_unwritable(text: str) -> str:
    """Escape lone surrogates, which occur in file names that are not UTF-8."""
    return text.encode(errors="backslashreplace").decode()


def _list_frames(error: BaseException) -> list[tuple[str, str]]:
    """List module and line of each frame of an error's traceback, the first call first."""
    return [
        (frame.f_globals.get("__name__", ""), f"{frame.f_code.co_filename}, line {line}")
        for frame, line in walk_tb(error.__traceback__)
    ]


def describe_origin(error: BaseException) -> str:
    """Describe the origin of an error and its caller."""
    places = [place for _, place in _list_frames(error)[-SHOWN_FRAMES:]]
    return ", called from ".join(reversed(places))


def describe_module_origin(error: BaseException, module: str) -> str:
    """Describe the last frame of an error in a user's module or its package.

    Empty if there is none, as for a call with wrong arguments.
    """
    frames, package = _list_frames(error), module.partition(".")[0]
    lines = [place for name, place in frames if name == module] or [
        place for name, place in frames if name.partition(".")[0] == package
    ]
    return lines[-1] if lines else ""


def describe_user_origin(error: BaseException) -> str:
    """Describe the last frame of an error outside this project and PyTorch, or ""."""
    lines = [
        place for name, place in _list_frames(error) if name.partition(".")[0] not in _OWN_PACKAGES
    ]
    return lines[-1] if lines else ""


def find_last_module(error: BaseException, modules: Container[str]) -> str | None:
    """Find the last of some modules in an error's traceback, or None."""
    names = [name for name, _ in _list_frames(error)]
    return next((name for name in reversed(names) if name in modules), None)


def join_first(items: Sequence[str], most: int, apart: str = ", ") -> str:
    """Join the first items, and say how many more there are."""
    more = len(items) - most
    return apart.join(items[:most]) + (f"{apart.strip(', ')} and {more} more" if more > 0 else "")


def shorten_text(text: str, limit: int = MAX_TEXT) -> str:
    """Cut the middle out of a long text, and escape control characters."""
    if len(text) > limit:
        half = limit // 2
        gap = f" [... {len(text) - 2 * half} characters left out ...] "
        text = f"{text[:half]}{gap}{text[-half:]}"
    return escape_controls(text)
