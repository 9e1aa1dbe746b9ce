"""What a command that did not end leaves behind, and the command that goes on with it."""

import shlex
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedcel.errors import DivergedError, FailedError, describe_origin, describe_unforeseen
from sims import supervisor


class CommandInterrupted(Exception):  # noqa: N818 - the user did as intended
    """Ctrl-C, with what is saved and how to go on; empty where there is nothing to say."""


@dataclass(frozen=True)
class RepeatHint:
    """Explains a command that goes on when it is given again."""

    saved: str
    """What is kept, in the plural."""
    arguments: Sequence[str]

    def __call__(self) -> str:
        """Return the end of a sentence."""
        command = shlex.join(["fedcel", *self.arguments])
        return f"; {self.saved} are kept, the same command again: {command}"


@dataclass(frozen=True)
class ResumeHint:
    """Explains an interrupted training: finished, to be resumed, or not begun."""

    folder: str
    arguments: Sequence[str]
    is_resumed: bool

    def __call__(self) -> str:
        """Return the end of a sentence, by what is in the folder now."""
        folder = Path(self.folder)
        if not (folder / "settings.toml").exists():
            return ""
        if (folder / "result.json").exists():
            return f"; the run is finished: {shlex.join(['fedcel', 'report', self.folder])}"
        if keeps_no_state(folder):
            return "; its strategy keeps no state, so it cannot be resumed: begin in another --out"
        flag = [] if self.is_resumed else ["--resume"]
        again = shlex.join(["fedcel", *self.arguments, *flag])
        return f"; complete rounds are saved, go on: {again}"


@dataclass(frozen=True)
class KeptHint:
    """Explains a command that keeps what it has found, and begins again when it is repeated."""

    file: str
    """Empty: nothing is kept."""
    begin: float
    """Of the command, in seconds since 1970: an older file is another command's."""

    def __call__(self) -> str:
        """Return the end of a sentence, by what is in the file now."""
        path = Path(self.file)
        if not self.file or not path.is_file() or path.stat().st_mtime < self.begin:
            return ""
        return f"; what was found until then is kept in {path}"


HINTS: Mapping[str, Callable[..., Callable[[], str]]] = {
    kind.__name__: kind for kind in (RepeatHint, ResumeHint, KeptHint)
}
"""What a process can say to the one that waits for it."""


@contextmanager
def explain_interruption(explain: Callable[[], str]) -> Iterator[None]:
    """Turn Ctrl-C within the block into `CommandInterrupted` with an explanation.

    What failed ends with the explanation, too: a second try may find other circumstances. So does
    what the process that waits says of a process that ended without a word.
    """
    if isinstance(explain, RepeatHint | ResumeHint | KeptHint):
        supervisor.say_hint({"kind": type(explain).__name__, "values": asdict(explain)})
    try:
        yield
    except KeyboardInterrupt:
        raise CommandInterrupted(explain()) from None
    except DivergedError:  # it would diverge again
        raise
    except SystemExit as error:
        raise FailedError(f"{describe_exit(error)}{explain()}") from error
    except BrokenPipeError:  # who read the output has gone
        raise
    except OSError as error:
        if not isinstance(explain, ResumeHint) or not explain():  # nothing was begun
            raise
        raise FailedError(f"{describe_disk_error(error)}{explain()}") from error
    except FailedError as error:
        raise type(error)(f"{error}{explain()}") from error


def explain_hint(hint: Mapping[str, Any] | None) -> str:
    """Return the explanation that another process said it would end with."""
    return HINTS[hint["kind"]](**hint["values"])() if hint else ""


def describe_exit(error: SystemExit) -> str:
    """Return who asked the process to end: Ray, which was sent a SIGTERM, or a user's part."""
    return f"{describe_unforeseen(error)} ({describe_origin(error)}) ended it before it was done"


def describe_disk_error(error: OSError) -> str:
    """Return what could not be read or written, and what helps: a folder, or a full disk."""
    reason = ": ".join(str(part) for part in (error.filename, error.strerror or error) if part)
    return f"cannot read or write {reason}; name another place, or make room there"


def keeps_no_state(folder: Path) -> bool:
    """Say whether a run's strategy averages weights: one of Flower's, which cannot be resumed."""
    settings = tomllib.loads((folder / "settings.toml").read_text())
    return bool(settings.get("strategy", {}).get("upload") == "weights")
