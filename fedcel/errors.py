"""Every error that a user's input can cause, and how to describe one that nobody foresaw."""

import re
from collections.abc import Container
from traceback import walk_tb
from unicodedata import category

SHOWN_FRAMES = 2  # of a traceback: where an error rose, and who called
MAX_TEXT = 2000  # characters of an error that reach a log or another machine
MAX_REASON = 400  # characters of another library's error that are shown inside one of ours
MEMORY_WORDS = re.compile(r"out of memory|allocate memory|bad.alloc", re.IGNORECASE)
_STEERING = ("Cc", "Cf", "Cs", "Zl", "Zp")
"""Unicode's categories of characters that are not shown but do something."""
_OWN_PACKAGES = ("fedcel", "sims", "clients", "strategies", "torch", "torchvision", "onnxruntime")


class FedcelError(Exception):
    """Base of all errors below; the command line prints it and exits with 2."""


class SettingsError(FedcelError, ValueError):
    """A setting is unknown, of the wrong type, out of range or at odds with another."""


class PluginError(FedcelError, ValueError):
    """An import string does not lead to an object."""


class ContractError(PluginError):
    """A part of a user's own does not do what parts of its kind have to do."""


class DataError(FedcelError, ValueError):
    """A data source is missing, damaged or too small for what is asked of it."""


class NetError(FedcelError, ValueError):
    """A network cannot be split, averaged or measured."""


class RefusedImagesError(NetError):
    """An encoder cannot read the images: of another size, number of channels or type."""


class RunError(FedcelError, ValueError):
    """A run folder is missing, exists already, or cannot be read."""


class FailedError(FedcelError, RuntimeError):
    """A run that fails though its input was right; the command line exits with 1."""


class DivergedError(FailedError):
    """Training ran away."""


class RoundError(FailedError):
    """Too few clients gave an update that could be used."""


class StackingError(FailedError):
    """Clients cannot be trained at once, only one after the other."""


class EngineError(FailedError):
    """Breakdown of the engine that carries messages to clients."""


class LeakError(FedcelError, ValueError):
    """An encoder leaks more than its data holder allows."""


class LeakLimitError(LeakError):
    """All messages of a device together would leak more than its owner allows."""


class ServiceError(FedcelError, RuntimeError):
    """A service refused a question, cannot be reached, or answers what cannot be right."""


class ModelVersionError(ServiceError):
    """A service no longer answers the model version that a message was made for."""


class SpentError(ServiceError):
    """A budget for a service's answers is spent: the asker's own, or the served model's."""


class LedgerError(FailedError):
    """The ledger cannot be opened, read or written; no answer may leave."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error is one of memory; PyTorch and ONNX Runtime have no class for all."""
    return isinstance(error, MemoryError) or bool(MEMORY_WORDS.search(str(error)))


def describe_unforeseen(error: BaseException) -> str:
    """Return an error's type and message in a line; messages may have several lines, or none."""
    try:
        text = " ".join(str(error).split())
    except Exception:  # a class of the user's
        text = "it has no text: its __str__ raises"
    return ": ".join(filter(None, [type(error).__name__, escape_controls(text)]))


def escape_controls(text: str) -> str:
    """Show control characters, marks of direction and lone surrogates as Python writes them.

    Tabs and ends of lines stay; the rest would steer a terminal.
    """
    if text.isprintable():
        return text
    return "".join(
        c.encode("unicode_escape").decode() if category(c) in _STEERING and c not in "\t\n" else c
        for c in text
    )


def replace_unwritable(text: str) -> str:
    """Write lone surrogates, which names of files that are no UTF-8 have, as Python writes them."""
    return text.encode(errors="backslashreplace").decode()


def _list_frames(error: BaseException) -> list[tuple[str, str]]:
    """List module and place of each line that an error came through, from the first call on."""
    return [
        (frame.f_globals.get("__name__", ""), f"{frame.f_code.co_filename}, line {line}")
        for frame, line in walk_tb(error.__traceback__)
    ]


def describe_origin(error: BaseException) -> str:
    """Describe where an error that was raised rose, and who called."""
    places = [place for _, place in _list_frames(error)[-SHOWN_FRAMES:]]
    return ", called from ".join(reversed(places))


def describe_module_origin(error: BaseException, module: str) -> str:
    """Describe the last line of a user's module, or of its package, that an error came through.

    Empty where there is none, as for a call with arguments that a function does not take.
    """
    frames, package = _list_frames(error), module.partition(".")[0]
    lines = [place for name, place in frames if name == module] or [
        place for name, place in frames if name.partition(".")[0] == package
    ]
    return lines[-1] if lines else ""


def describe_user_origin(error: BaseException) -> str:
    """Describe the last line outside this project and PyTorch that an error came through, or ""."""
    lines = [
        place for name, place in _list_frames(error) if name.partition(".")[0] not in _OWN_PACKAGES
    ]
    return lines[-1] if lines else ""


def find_last_module(error: BaseException, modules: Container[str]) -> str | None:
    """Find the last of some modules that an error came through; None: through none of them."""
    names = [name for name, _ in _list_frames(error)]
    return next((name for name in reversed(names) if name in modules), None)


def shorten_text(text: str, limit: int = MAX_TEXT) -> str:
    """Cut the middle out of a long text, and escape what no file and no message can hold."""
    if len(text) > limit:
        half = limit // 2
        gap = f" [... {len(text) - 2 * half} characters left out ...] "
        text = f"{text[:half]}{gap}{text[-half:]}"
    return escape_controls(text)
