"""What a command that did not end leaves behind, and the command that goes on with it."""

import shlex
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from fedcel.errors import DivergedError, FailedError


class CommandInterrupted(Exception):  # noqa: N818 - the user did as intended
    """Ctrl-C, with what is saved and how to go on; empty where there is nothing to say."""


@contextmanager
def explain_interruption(explain: Callable[[], str]) -> Iterator[None]:
    """Turn Ctrl-C within the block into `CommandInterrupted` with an explanation.

    What failed ends with the explanation, too: a second try may find other circumstances.
    """
    try:
        yield
    except KeyboardInterrupt:
        raise CommandInterrupted(explain()) from None
    except DivergedError:  # it would diverge again
        raise
    except FailedError as error:
        raise type(error)(f"{error}{explain()}") from error


def repeat_hint(saved: str, arguments: Sequence[str]) -> Callable[[], str]:
    """Return the explanation of a command that goes on when it is given again."""
    command = shlex.join(["fedcel", *arguments])
    return lambda: f"; {saved} are kept, the same command again: {command}"


def resume_hint(folder: Path, arguments: Sequence[str], is_resumed: bool) -> Callable[[], str]:
    """Return the explanation of an interrupted training: finished, to be resumed, or not begun."""

    def explain() -> str:
        if not (folder / "settings.toml").exists():
            return ""
        if (folder / "result.json").exists():
            return f"; the run is finished: {shlex.join(['fedcel', 'report', str(folder)])}"
        if keeps_no_state(folder):
            return "; its strategy keeps no state, so it cannot be resumed: begin in another --out"
        flag = [] if is_resumed else ["--resume"]
        again = shlex.join(["fedcel", *arguments, *flag])
        return f"; complete rounds are saved, go on: {again}"

    return explain


def keeps_no_state(folder: Path) -> bool:
    """Say whether a run's strategy averages weights: one of Flower's, which cannot be resumed."""
    settings = tomllib.loads((folder / "settings.toml").read_text())
    return bool(settings.get("strategy", {}).get("upload") == "weights")
