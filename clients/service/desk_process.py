"""A desk in a process of its own: event loop and answers each have an interpreter and a core.

Both sides speak over a pair of sockets that nobody else has: each message is its length in eight
bytes, then a pickle. The process ends when the service's end of the pair is closed, however the
service ended, and never by a signal that was meant for the service.
"""

import asyncio
import gc
import os
import pickle
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, final

from clients.service.answer_desk import AnswerDesk
from clients.service.problems import describe_place
from fedcel.errors import FedcelError, LedgerError
from fedcel.privacy.ledger import LedgerAddress

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

LENGTH_BYTES = 8
END_SECONDS = 10.0
"""How long to wait for the process's end once its work is done."""
OWN_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Which a terminal or a supervisor may send to the whole group."""


class AnsweringError(Exception):
    """The desk failed unexpectedly; type and place of what failed, never its words."""


@final
class ProcessDesk:
    """A desk in a process of its own, which starts now and ends with the context.

    It works on one batch while the event loop reads the queries of the next.
    """

    batches_at_once = 2

    _writer: asyncio.StreamWriter
    _replies: asyncio.Task[None] | None = None

    def __init__(self) -> None:
        self._connection, other_end = socket.socketpair()
        with other_end:
            self._process = start_process(other_end)
        self._asked: deque[asyncio.Future[Any]] = deque()
        self._is_closing = False
        self._has_ended = False

    def __enter__(self) -> Self:
        """Return this desk."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the process."""
        self.end()

    async def open(self, ledger: LedgerAddress, on_end: Callable[[], None]) -> None:
        """Have the process open the ledger."""
        reader, self._writer = await asyncio.open_connection(sock=self._connection)
        self._replies = asyncio.create_task(self._read_replies(reader, on_end))
        await self._send((AnswerDesk, (ledger,), {}))

    async def call(
        self,
        method: Callable[Concatenate[AnswerDesk, Parameters], Result],
        *arguments: Parameters.args,
        **options: Parameters.kwargs,
    ) -> Result:
        """Return what a method of the desk returns; LedgerError where the process has ended."""
        result: Result = await self._send((method, arguments, options))
        return result

    async def close(self) -> None:
        """Do what was asked, then close the ledger and end the process."""
        self._is_closing = True
        if self._replies is not None:
            with suppress(FedcelError):  # it may have ended, or have no ledger
                await self._send((AnswerDesk.close, (), {}))
            self._writer.close()
            await self._replies
        await asyncio.to_thread(self.end)

    def end(self) -> None:
        """End the process, if it still runs."""
        self._connection.close()
        if self._replies is None:  # it may still load what it needs
            self._process.kill()
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    async def _send(self, request: object) -> Any:
        if self._has_ended:
            raise LedgerError("the process that has the ledger has ended; start the service again")
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._asked.append(future)
        self._writer.write(encode_message(request))
        return await future

    async def _read_replies(self, reader: asyncio.StreamReader, on_end: Callable[[], None]) -> None:
        """Give each reply to who asked; at the process's end tell all who still wait."""
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                length = int.from_bytes(await reader.readexactly(LENGTH_BYTES))
                reply = pickle.loads(await reader.readexactly(length))
                future = self._asked.popleft()
                if future.done():  # who asked has gone
                    continue
                if isinstance(reply, Exception):
                    future.set_exception(reply)
                else:
                    future.set_result(reply)
        self._has_ended = True
        for future in self._asked:
            if not future.done():
                future.set_exception(LedgerError("the process that has the ledger has ended"))
        self._asked.clear()
        if not self._is_closing:
            on_end()


def start_process(connection: socket.socket) -> "subprocess.Popen[bytes]":
    """Start a process that answers over a socket and finds the same modules as this one."""
    code = f"from {__name__} import main; main()"
    path = os.pathsep.join(folder or os.getcwd() for folder in sys.path)
    return subprocess.Popen(
        [sys.executable, "-c", code, str(connection.fileno())],
        pass_fds=[connection.fileno()],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": path},
    )


def main() -> None:
    """Answer over the socket whose number is the first argument."""
    import torch

    for number in OWN_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    torch.set_num_threads(1)  # batches are small; more threads would only wait for each other
    with socket.socket(fileno=int(sys.argv[1])) as connection:
        serve_desk(connection)


def serve_desk(connection: socket.socket) -> None:
    """Make a desk and do what is asked of it, in order, until the other end is closed."""
    desk: AnswerDesk | None = None
    with connection.makefile("rb") as stream, suppress(ConnectionError):
        while length := stream.read(LENGTH_BYTES):
            function, arguments, options = pickle.loads(stream.read(int.from_bytes(length)))
            try:
                if function is AnswerDesk:
                    desk, result = AnswerDesk(*arguments), None
                elif desk is None:
                    raise LedgerError("the process has no ledger; start the service again")
                else:
                    result = function(desk, *arguments, **options)
                if desk is not None and function is AnswerDesk.add_version:
                    desk.rehearse(arguments[0].model.version)
                    spare_from_collections()
            except FedcelError as error:
                result = error
            except Exception as error:  # its words may repeat what was sent
                result = AnsweringError(describe_place(error))
            connection.sendall(encode_message(result))


def encode_message(message: object) -> bytes:
    """Return a message as it is sent."""
    body = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    return len(body).to_bytes(LENGTH_BYTES) + body


def spare_from_collections() -> None:
    """Let no garbage collection walk through what is loaded by now.

    Libraries and model are some 300 000 objects that stay: each full collection would stop all
    answers for a fifth of a second.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()
