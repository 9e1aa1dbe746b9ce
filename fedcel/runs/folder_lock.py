"""One writer for a folder: whoever comes second is refused, and told who is there."""

import fcntl
import json
import os
import signal
import socket
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from fedcel.errors import RunError

LOCK = ".lock"
"""In a folder that a process writes into: who it is. Gone when the process ends as it should."""
ENDING_SECONDS = 20.0
"""In which a killed process gives its memory and its locks back, on a busy machine, too."""
LOOK_SECONDS = 0.05
SAID_SECONDS = 1.0
"""Of waiting, until a line says so."""
PROCESSES = Path("/proc")
KILL_MASK = 1 << signal.SIGKILL - 1
EXITING_FLAG = 0x4
"""PF_EXITING of Linux, in the ninth field of a process's `stat`."""


@contextmanager
def hold_folder(folder: str | Path) -> Iterator[None]:
    """Keep other processes from writing into a folder, for as long as this one does.

    The lock is the operating system's (`flock`): it ends with the process, however that ends, so
    that none is ever left behind. The file beside it only says who holds it. A holder that was
    killed is waited for, `ENDING_SECONDS` at most; one that works is not.

    Not by the package filelock: where there is no `flock` it makes a file that outlives its
    process, and it does not say who holds a lock.

    Args:
        folder: Made where there is none, and removed again where it is left empty.

    Yields:
        Nothing; the folder is held until the block ends.

    Raises:
        RunError: Another process writes into it.
    """
    folder = Path(folder)
    is_new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    handle = _lock(folder)
    try:
        yield
    finally:
        if handle is not None:
            # Removed while it is held: who opens it after that finds another file, see `_lock`.
            with suppress(FileNotFoundError):
                (folder / LOCK).unlink()
            os.close(handle)
        if is_new:
            with suppress(OSError):  # something was written, as it should be
                folder.rmdir()


def _lock(folder: Path) -> int | None:
    """Return the open file whose lock this process holds; None where the disk has no locks."""
    path = folder / LOCK
    begin = time.monotonic()
    is_said = False
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            seconds = time.monotonic() - begin
            writer = _read_writer(path)
            if writer is not None and writer.is_ending and seconds < ENDING_SECONDS:
                if seconds > SAID_SECONDS and not is_said:
                    is_said = True
                    warnings.warn(
                        f"waiting for process {writer.process}, which was killed and has {folder} "
                        "still open",
                        stacklevel=4,
                    )
                time.sleep(LOOK_SECONDS)
                continue
            user = "another process"
            if writer is not None:
                user = f"process {writer.process} on {writer.host} since {writer.since}"
            raise RunError(
                f"{folder} is in use by {user}; two writers would damage it: "
                "wait for it or stop it, or name another folder"
            ) from None
        except OSError as error:  # some network file systems have none
            os.close(handle)
            path.unlink(missing_ok=True)
            warnings.warn(
                f"{folder} cannot be locked ({error.strerror}): nothing keeps another process from "
                "writing into it",
                stacklevel=4,
            )
            return None
        if _is_current(handle, path):
            break
        os.close(handle)  # its holder removed it between the two calls
    holder = {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "since": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    os.ftruncate(handle, 0)
    os.write(handle, json.dumps(holder).encode())
    return handle


def _is_current(handle: int, path: Path) -> bool:
    """Whether an open file is still the one of that name."""
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False


class FolderWriter(NamedTuple):
    """The process that writes into a folder."""

    process: int
    host: str
    since: str

    @property
    def is_gone(self) -> bool:
        """Whether it is known to have ended: on another machine that cannot be known."""
        if self.host != socket.gethostname():
            return False
        try:
            os.kill(self.process, 0)
        except ProcessLookupError:
            return True
        except (PermissionError, OverflowError):  # another user's
            return False
        return False

    @property
    def is_ending(self) -> bool:
        """Whether it was killed, and only has to give back what it holds."""
        if self.is_gone or self.host != socket.gethostname():
            return self.is_gone
        place = PROCESSES / str(self.process)
        try:
            fields = (place / "stat").read_text().rpartition(")")[2].split()
            status = dict(
                line.split(":\t", 1) for line in (place / "status").read_text().splitlines()
            )
            pending = int(status["ShdPnd"], 16) | int(status["SigPnd"], 16)
        except FileNotFoundError:  # it has ended meanwhile, or this system shows no processes
            return PROCESSES.joinpath("self").exists()
        except (OSError, LookupError, ValueError):
            return False
        state, flags = fields[0], int(fields[6])
        return state in "ZX" or bool(flags & EXITING_FLAG or pending & KILL_MASK)


def find_writer(folder: str | Path) -> FolderWriter | None:
    """Find out who writes into a folder, without taking its lock from anybody.

    Args:
        folder: Of a run or a bench.

    Returns:
        The process; None where there is none, or it was killed.
    """
    writer = _read_writer(Path(folder) / LOCK)
    return None if writer is None or writer.is_gone else writer


def _read_writer(path: Path) -> FolderWriter | None:
    """Return who holds a lock; None where nobody does, or it has only just been taken."""
    try:
        holder = json.loads(path.read_text())
        return FolderWriter(int(holder["pid"]), str(holder["host"]), str(holder["since"]))
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        return None
