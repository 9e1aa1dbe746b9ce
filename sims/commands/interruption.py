"""Explanations of an interrupted command: what is kept, and the command that goes on with it."""

import shlex
import tomllib
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from fedcel.errors import (
    CrashedError,
    DivergedError,
    FailedError,
    FedcelError,
    describe_origin,
    describe_unforeseen,
)
from fedcel.extras import missing_extra_error
from sims import supervisor

if TYPE_CHECKING:
    from fedcel.settings import AttackSettings


class CommandInterrupted(Exception):  # noqa: N818 - the user did as intended
    """Ctrl-C, with what is saved and how to go on; empty where there is nothing to say."""


def explain_repeat(saved: str, arguments: Sequence[str]) -> str:
    """Explain a command that goes on when it is given again; `saved` is what it keeps, a plural."""
    command = shlex.join(["fedcel", *arguments])
    return f"; {saved} are kept, the same command again: {command}"


def explain_resume(folder: Path, arguments: Sequence[str], *, is_resumed: bool) -> str:
    """Explain an interrupted training: finished, to be resumed, or not begun (empty)."""
    if not (folder / "settings.toml").exists():
        return ""
    if (folder / "result.json").exists():
        return f"; the run is finished: {shlex.join(['fedcel', 'report', str(folder)])}"
    settings = tomllib.loads((folder / "settings.toml").read_text())
    if settings.get("strategy", {}).get("upload") == "weights":  # one of Flower's own
        return "; its strategy keeps no state, so it cannot be resumed: begin in another --out"
    flag = [] if is_resumed else ["--resume"]
    again = shlex.join(["fedcel", *arguments, *flag])
    return f"; complete rounds are saved, go on: {again}"


def explain_lacking(folder: Path, attacks: "AttackSettings", arguments: Sequence[str]) -> str:
    """Explain interrupted attacks on a run, of which some have ended; empty where none has."""
    from sims.results.attack_results import lacking_settings

    lacking = lacking_settings(folder, attacks)
    if lacking is None or lacking.names.count(",") == attacks.names.count(","):
        return ""
    command = shlex.join(["fedcel", *arguments, "--set", f"attack.names={lacking.names}"])
    return f"; attacks that have ended are kept, go on: {command}"


def explain_kept(file: Path | None, begin: float) -> str:
    """Explain a command that keeps what it has found; empty where `file` is older than `begin`."""
    if file is None or not file.is_file() or file.stat().st_mtime < begin:
        return ""
    return f"; what was found until then is kept in {file}"


@contextmanager
def explain_interruption(explain: Callable[[], str]) -> Iterator[None]:
    """Turn Ctrl-C within the block into `CommandInterrupted` with an explanation.

    What failed ends with the explanation, too: a second try may find other circumstances. So does
    what the process that waits says of a process that ended without a word.
    """
    supervisor.report_state(explain=explain)
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
        if not (explanation := explain()):  # nothing was begun
            raise
        raise FailedError(f"{describe_disk_error(error)}{explanation}") from error
    except FailedError as error:
        raise type(error)(f"{error}{explain()}") from error


@contextmanager
def report_crash() -> Iterator[None]:
    """Turn what fails within the block into `CrashedError`, below the traceback of a defect."""
    try:
        yield
    except FailedError as error:
        raise CrashedError(str(error)) from error
    except (FedcelError, CommandInterrupted, OSError):
        raise
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and missing_extra_error(error.name or ""):
            raise
        traceback.print_exc()
        raise CrashedError(describe_unforeseen(error)) from error


def describe_exit(error: SystemExit) -> str:
    """Return who asked the process to end: Ray, which was sent a SIGTERM, or a user's part."""
    return f"{describe_unforeseen(error)} ({describe_origin(error)}) ended it before it was done"


def describe_disk_error(error: OSError) -> str:
    """Return what could not be read or written, and what helps: a folder, or a full disk."""
    reason = ": ".join(str(part) for part in (error.filename, error.strerror or error) if part)
    return f"cannot read or write {reason}; name another place, or make room there"
