"""One writer for a folder: real processes, one of them killed."""

import errno
import fcntl
import os
import signal
import socket
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from fedcel.errors import RunError
from fedcel.runs import hold_folder, open_run
from fedcel.runs.folder_lock import LOCK
from fedcel.settings import parse_settings

HOLDER = """
import sys, time
from pathlib import Path
from fedcel.runs import hold_folder
with hold_folder(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def start_holder(folder: Path, program: str = HOLDER) -> "subprocess.Popen[str]":
    """Start a process that holds a folder; return it once it does."""
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(folder)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    return process


def test_a_second_process_is_told_who_writes_and_a_killed_one_leaves_no_lock(
    tmp_path: Path,
) -> None:
    """Refused at once by process and host; SIGKILL leaves the file, and nobody minds it."""
    folder = tmp_path / "run"
    with start_holder(folder) as process:
        try:
            words = rf"in use by process {process.pid} on {socket.gethostname()} since 2\d\d\d-"
            with pytest.raises(RunError, match=words), hold_folder(folder):
                pytest.fail("two processes hold one folder")
            with pytest.raises(RunError, match="in use"), open_run(folder, parse_settings({})):
                pytest.fail("a run is made in a folder that is held")
        finally:
            process.send_signal(signal.SIGKILL)
    assert (folder / LOCK).exists()
    with open_run(folder, parse_settings({})) as has_rounds:
        assert not has_rounds
    assert [path.name for path in folder.iterdir()] == ["settings.toml"]


def test_the_lock_is_gone_with_the_block_whatever_ends_it(tmp_path: Path) -> None:
    """No file stays, and no folder that nothing was written into."""
    with pytest.raises(ZeroDivisionError), hold_folder(tmp_path / "new"):
        raise ZeroDivisionError
    assert not (tmp_path / "new").exists()
    with hold_folder(tmp_path):
        assert (tmp_path / LOCK).exists()
    assert not list(tmp_path.iterdir())


def test_a_file_removed_by_its_last_holder_is_no_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between opening and locking the holder went: the lock of the removed file guards nothing."""
    lock, removed = fcntl.flock, []

    def remove_first(handle: int, operation: int) -> None:
        if not removed:
            removed.append(os.fstat(handle).st_ino)
            (tmp_path / LOCK).unlink()
        lock(handle, operation)

    monkeypatch.setattr(fcntl, "flock", remove_first)
    with hold_folder(tmp_path):
        monkeypatch.undo()
        with pytest.raises(RunError, match="in use"), hold_folder(tmp_path):
            pytest.fail("the folder is held twice")


def test_a_disk_without_locks_is_written_to_with_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some network file systems have none; a run there is no worse off than before."""

    def refuse(handle: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.warns(UserWarning, match="cannot be locked"), hold_folder(tmp_path):
        assert not list(tmp_path.iterdir())


ENDING_HOLDER = """
import os, sys, time
from pathlib import Path
from fedcel.runs import hold_folder
with hold_folder(Path(sys.argv[1])):
    if os.fork() == 0:  # has the lock, too, as the system has it until a killed process is gone
        while not Path(sys.argv[1]).with_name("released").exists():
            time.sleep(0.02)
        os._exit(0)
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_holder_that_was_killed_is_waited_for(tmp_path: Path) -> None:
    """A scheduler kills a run and starts it again at once: it goes on, and says what it awaits."""
    folder, released = tmp_path / "run", tmp_path / "released"
    said = []

    def release(message: Warning | str, *_: object) -> None:
        said.append(str(message))
        released.touch()

    with start_holder(folder, ENDING_HOLDER) as process, warnings.catch_warnings():
        process.kill()
        warnings.simplefilter("always")
        warnings.showwarning = release
        with hold_folder(folder):
            assert released.exists()
        assert len(said) == 1
        assert f"waiting for process {process.pid}, which was killed" in said[0]
