"""A command whose process ends without a word: the process that waits for it speaks."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = """
import functools, os, signal, subprocess, sys, time
from sims import supervisor

signal.signal(signal.SIGHUP, signal.SIG_DFL)  # these tests may run under nohup

status = supervisor.supervise_command(functools.partial(print, file=sys.stderr))
if status is not None:
    sys.exit(status)
supervisor.report_state(explain=functools.partial(str, "; go on"))
interrupts = 0
try:
    exec(sys.argv[1])
except KeyboardInterrupt:
    for _ in range(20):  # of cleaning up
        time.sleep(.02)
    print("interrupted", flush=True)
    supervisor.report_state(status=130)
    sys.exit(130)
"""
WAIT = "print(os.getpid(), flush=True); [time.sleep(.02) for _ in range(3000)]"
"""A minute of work; in short sleeps, as a signal that arrives as one begins waits for its end."""
USE_RAY = "supervisor.report_state(uses_ray=True)"


def start(work: str) -> subprocess.Popen[str]:
    """Start a command that does this, in a group of its own."""
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, work],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@pytest.mark.parametrize(
    ("work", "reason"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", "its process was killed (SIGKILL), for want of"),
        ("os.abort()", "its process was ended by SIGABRT"),
        ("os._exit(0)", "its process ended without a word (exit status 0)"),
        (
            f"{USE_RAY}; os._exit(1)",
            "Ray ended the training, as it does where",
        ),
        (
            f"{USE_RAY}; os.abort()",
            "Ray ended the training, as it does where",
        ),
        (
            f"{USE_RAY}; os._exit(3)",
            "its process ended without a word (exit status 3)",
        ),
        (
            "[supervisor.report_state(uses_ray=use) for use in (True, False)]; os._exit(1)",
            "its process ended without a word (exit status 1)",
        ),
    ],
)
def test_an_end_without_a_word_is_reported(work: str, reason: str) -> None:
    """With Ray as the cause where it may be, and how to go on; the exit status is 1."""
    process = start(work)
    _, reported = process.communicate(timeout=60)
    assert reported.startswith(reason) and reported.endswith("; go on\n")
    assert process.returncode == 1


@pytest.mark.parametrize("status", [0, 1, 2])
def test_a_command_with_words_of_its_own_is_left_alone(status: int) -> None:
    """Its exit status is the command's, even if a library crashes when all is done."""
    for end in (f"sys.exit({status})", "os.abort()"):
        process = start(
            f"print('done', flush=True); supervisor.report_state(status={status}); {end}"
        )
        written, reported = process.communicate(timeout=60)
        assert (written, reported, process.returncode) == ("done\n", "", status)


@pytest.mark.parametrize(
    ("number", "is_to_all", "status"),
    [
        (signal.SIGINT, False, 130),
        (signal.SIGINT, True, 130),
        (signal.SIGTERM, False, 143),
        (signal.SIGHUP, False, 129),
    ],
)
def test_what_stops_a_command_stops_it_in_order(
    number: signal.Signals, is_to_all: bool, status: int
) -> None:
    """Once, though a terminal's Ctrl-C reaches both processes and is passed on."""
    process = start(WAIT)
    assert process.stdout
    process.stdout.readline()
    (os.killpg if is_to_all else os.kill)(process.pid, number)
    written, reported = process.communicate(timeout=60)
    assert (written, reported, process.returncode) == ("interrupted\n", "", status)


def test_a_second_termination_ends_what_does_not_clean_up() -> None:
    """It is then reported by the process that waits."""
    process = start("signal.signal(signal.SIGINT, signal.SIG_IGN); " + WAIT)
    assert process.stdout
    process.stdout.readline()
    for _ in range(2):
        process.terminate()
        time.sleep(0.2)
    _, reported = process.communicate(timeout=60)
    assert reported == "ended by SIGTERM; go on\n" and process.returncode == 143


def test_the_work_ends_with_the_process_that_waits() -> None:
    """It is the one whose id is known: a killed command does not train on."""
    process = start(WAIT)
    assert process.stdout
    worker = int(process.stdout.readline())
    assert worker != process.pid
    process.kill()
    assert process.stdout.read() == ""  # until the worker has closed it
    assert process.wait(60) == -signal.SIGKILL


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux kills it at once")
def test_the_process_that_works_ends_with_the_one_that_waits() -> None:
    """At once, though no thread of it gets a turn: a scheduler kills, and starts the next."""
    busy = "import re; print(os.getpid(), flush=True); re.match('(a+)+$', 'a' * 60 + 'b')"
    process = start(busy)
    assert process.stdout
    worker = int(process.stdout.readline())
    try:
        process.kill()
        process.wait()
        limit = time.monotonic() + 10
        while Path(f"/proc/{worker}").exists():
            assert time.monotonic() < limit, "it still works"
            time.sleep(0.05)
    finally:
        with suppress(ProcessLookupError):
            os.kill(worker, signal.SIGKILL)
