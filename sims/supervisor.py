"""Two processes for a long command: one works, the other waits and speaks where that one cannot.

Ray ends a process whose node is gone, the system one for want of memory, and a library or a user's
part may call `os._exit`: none of them lets Python say a word. The process that waits is forked
before anything large is imported. It takes next to no memory, and is not what the system ends.
"""

import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from threading import Thread
from types import FrameType
from typing import Any, NamedTuple

FAILED = 1
KILLED = 128  # plus a signal's number: a shell's status of what the signal ended
SAME_INTERRUPT_SECONDS = 0.5
"""A terminal sends Ctrl-C to both processes, and the one that waits sends it on."""
LOOK_SECONDS = 0.5
"""Longest wait for a message. Python handles a signal between two waits: one that arrives as a wait
begins is handled after it."""
CLOSING_SECONDS = 0.01
"""Between a process's last word and its end."""
RAYS_WAYS = (1, -signal.SIGABRT)
"""Exit statuses of a process that Ray ends, where one of its own is gone."""
STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that end a command from outside; each stops the training as Ctrl-C does."""
SET_PARENT_DEATH_SIGNAL = 1
"""PR_SET_PDEATHSIG of Linux."""

Explanation = Callable[[], str]
"""End of a sentence on how to go on, by what is on the disk when it is called."""


class Report(NamedTuple):
    """State of the process that works, sent whenever a part of it changes."""

    status: int | None = None
    """Exit status to come: the command has ended in words of its own."""
    explain: Explanation | None = None
    """How to go on, should the process end without a word."""
    uses_ray: bool = False
    """Whether it uses Ray, which ends it where a process of Ray's own ends."""


class _Link:
    """Of the process that works: the way to the one that waits, if there is one."""

    channel: "Connection[Report, None] | None" = None
    report = Report()


def supervise_command(report_ending: Callable[[str], object]) -> int | None:
    """Fork the process that runs the command, and wait for it; return its exit status.

    None in the process that is to run the command, or where the system cannot fork.
    `report_ending` is called here where the other could not say why it ended: with the reason, and
    how to go on.
    """
    if not hasattr(os, "fork"):
        return None
    near, far = Pipe()
    signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
    supervisor = os.getpid()
    process = os.fork()
    if process == 0:
        near.close()
        _die_with(supervisor)
        _begin_work(far)
        return None
    far.close()
    received = _pass_on_stops(process)
    report, wait_status = _wait(process, near)
    return _conclude(wait_status, report, received, report_ending)


def report_state(**changes: Any) -> None:
    """Report fields of `Report` that changed to the process that waits, if there is one.

    This one may end at any time without a word; what it reports, such as `explain`, can be pickled.
    """
    if _Link.channel is not None:
        _Link.report = _Link.report._replace(**changes)
        with suppress(OSError):  # it was killed, and this process ends in a moment
            _Link.channel.send(_Link.report)


def _die_with(parent: int) -> None:
    """Let the system kill this process the moment that its parent ends, where it can (Linux).

    The thread of `_begin_work` would do it, too, but only once it gets its turn, which takes
    seconds on a busy machine; so long would this process hold its folder.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
        if os.getppid() != parent:  # it ended before
            os.kill(os.getpid(), signal.SIGKILL)


def _begin_work(channel: "Connection[Report, None]") -> None:
    """Set up the process that works: signals, and an end together with the one that waits."""
    _Link.channel = channel
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _Interruption())
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
    Thread(target=_end_with_supervisor, args=(channel,), daemon=True).start()


class _Interruption:
    """Raises KeyboardInterrupt once for a Ctrl-C that comes twice."""

    def __init__(self) -> None:
        self._last = -SAME_INTERRUPT_SECONDS

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Handle the signal."""
        before, self._last = self._last, time.monotonic()
        if self._last - before >= SAME_INTERRUPT_SECONDS:
            signal.default_int_handler(number, frame)


def _end_with_supervisor(channel: "Connection[Report, None]") -> None:
    """End when the process that waits has: it is the one whose id people know and kill."""
    with suppress(OSError, EOFError):
        channel.recv()  # nothing is sent this way
    os._exit(KILLED + signal.SIGKILL)


def _pass_on_stops(process: int) -> list[int]:
    """Send what would end this process to the one that works; returns what came, so far.

    The first is sent as Ctrl-C, which ends a training in order: Ray's own handlers of the others
    dump a stack and abort. Who ignores Ctrl-C, as a script's job in the background, gets the
    signal itself.
    """
    received: list[int] = []
    heeded = [number for number in STOPS if signal.getsignal(number) != signal.SIG_IGN]

    def pass_on(number: int, frame: FrameType | None) -> None:
        is_first = not received or number == signal.SIGINT
        received.append(number)
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGINT if is_first and signal.SIGINT in heeded else number)

    for number in heeded:
        signal.signal(number, pass_on)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
    return received


def _wait(process: int, channel: "Connection[None, Report]") -> tuple[Report, int]:
    """Wait until the process ends; return its last report, and the system's wait status."""
    report = Report()
    while True:
        ended, wait_status = os.waitpid(process, os.WNOHANG)
        with suppress(OSError, EOFError):
            while channel.poll(0 if ended else LOOK_SECONDS):
                report = channel.recv()
        if ended:
            return report, wait_status
        time.sleep(CLOSING_SECONDS)


def _conclude(
    wait_status: int,
    report: Report,
    received: Sequence[int],
    report_ending: Callable[[str], object],
) -> int:
    """Return the command's exit status; report an end without a word."""
    status = os.waitstatus_to_exitcode(wait_status)
    if report.status is None:
        if sys.stderr.isatty():
            sys.stderr.write("\x1b[?25h\n")  # a bar hides the cursor, and its line is not ended
        with suppress(OSError):  # a terminal that was closed
            reason = _describe_end(status, received, uses_ray=report.uses_ray)
            report_ending(reason + (report.explain() if report.explain else ""))
        status = FAILED
    elif status <= 0:  # or a library crashed while the interpreter ended: nothing was left to do
        status = report.status
    stops = [number for number in received if number != signal.SIGINT]
    return KILLED + stops[0] if stops and status else status


def _describe_end(status: int, received: Sequence[int], *, uses_ray: bool) -> str:
    """Describe why a process ended, as far as it can be seen from outside."""
    if received:
        return f"ended by {signal.Signals(received[0]).name}"
    if status == -signal.SIGKILL:
        return "its process was killed (SIGKILL), for want of memory perhaps"
    if uses_ray and status in RAYS_WAYS:
        return "Ray ended the training, as it does where its raylet, agent or head node ended"
    if status < 0:
        return f"its process was ended by {signal.Signals(-status).name}"
    return (
        f"its process ended without a word (exit status {status}): a library or a part of your own "
        "ended it"
    )
