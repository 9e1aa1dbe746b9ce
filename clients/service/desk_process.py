"""A desk in a process of its own: event loop and answers each have an interpreter and a core.

Both sides speak over a pair of sockets that nobody else has: each message is its length in eight
bytes, then a pickle with the request's number. The process ends when the service's end of the pair
is closed, however the service ended, and never by a signal that was meant for the service.
"""

import asyncio
import gc
import os
import pickle
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from typing import Any, BinaryIO, Concatenate, ParamSpec, Self, TypeVar, final

from clients.service.answer_desk import AnswerDesk
from clients.service.problems import describe_place
from clients.service.versions import ModelOffer
from fedcel.errors import FedcelError, LedgerError
from fedcel.privacy.ledger import LedgerAddress

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

LENGTH_BYTES = 8
CLOSE_SECONDS = 20.0
"""How long to wait, at the end, until what was asked is done. What is cut off leaves nothing."""
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
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._numbers = count()
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
        await self._send(AnswerDesk, ledger)

    async def call(
        self,
        method: Callable[Concatenate[AnswerDesk, Parameters], Result],
        *arguments: Parameters.args,
        **options: Parameters.kwargs,
    ) -> Result:
        """Return what a method of the desk returns; LedgerError where the process has ended."""
        result: Result = await self._send(method, *arguments, **options)
        return result

    async def close(self) -> None:
        """Do what was asked, then close the ledger and end the process."""
        self._is_closing = True
        try:
            if self._replies is not None:
                with suppress(LedgerError, AnsweringError, TimeoutError):
                    async with asyncio.timeout(CLOSE_SECONDS):
                        await self._send(AnswerDesk.close)
                self._writer.close()
        finally:
            await asyncio.to_thread(self.end)
        if self._replies is not None:
            await self._replies

    def end(self) -> None:
        """End the process, if it still runs."""
        self._connection.close()
        if self._replies is None or self._asked:  # it still loads what it needs, or hangs
            self._process.kill()
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    async def _send(self, function: object, *arguments: object, **options: object) -> Any:
        if self._has_ended:
            raise LedgerError("the process that has the ledger has ended; start the service again")
        number = next(self._numbers)
        content = pickle.dumps((function, arguments, options), pickle.HIGHEST_PROTOCOL)
        message = encode_message((number, content))  # where this fails, nothing was asked
        self._asked[number] = asyncio.get_running_loop().create_future()
        self._writer.write(message)
        return await self._asked[number]

    async def _read_replies(self, reader: asyncio.StreamReader, on_end: Callable[[], None]) -> None:
        """Give each reply to who asked; at the process's end tell all who still wait."""
        try:
            with suppress(asyncio.IncompleteReadError, ConnectionError):
                while True:
                    length = int.from_bytes(await reader.readexactly(LENGTH_BYTES))
                    number, reply = pickle.loads(await reader.readexactly(length))
                    future = self._asked.pop(number)
                    if future.done():  # who asked has gone
                        continue
                    if isinstance(reply, Exception):
                        future.set_exception(reply)
                    else:
                        future.set_result(reply)
        finally:
            self._has_ended = True
            for future in self._asked.values():
                if not future.done():
                    future.set_exception(LedgerError("the process that has the ledger has ended"))
            self._asked.clear()
            if not self._is_closing:
                on_end()


def start_process(connection: socket.socket) -> "subprocess.Popen[bytes]":
    """Start a process that answers over a socket and looks for modules where this one does."""
    code = f"from {__name__} import main; main()"
    path = os.pathsep.join(folder or os.getcwd() for folder in sys.path)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, OWN_SIGNALS)  # the process inherits it
    try:
        return subprocess.Popen(
            [sys.executable, "-P", "-c", code, str(connection.fileno())],
            pass_fds=[connection.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": path},
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def main() -> None:
    """Answer over the socket whose number is the first argument."""
    import torch

    torch.set_num_threads(1)  # batches are small; more threads would only wait for each other
    with socket.socket(fileno=int(sys.argv[1])) as connection:
        serve_desk(connection)


def serve_desk(connection: socket.socket) -> None:
    """Make a desk and do what is asked of it, in order, until the other end is closed."""
    desk: AnswerDesk | None = None
    with connection.makefile("rb") as stream, suppress(ConnectionError):
        while (message := read_message(stream)) is not None:
            number, content = message
            result: object = None
            try:
                function, arguments, options = pickle.loads(content)
                if function is AnswerDesk:
                    desk = AnswerDesk(*arguments)
                elif desk is None:
                    raise LedgerError("the process has no ledger; start the service again")
                elif function is AnswerDesk.add_version:
                    add_rehearsed_version(desk, *arguments)
                else:
                    result = function(desk, *arguments, **options)
            except FedcelError as error:
                result = error
            except Exception as error:  # its words may repeat what was sent
                result = AnsweringError(describe_place(error))
            connection.sendall(encode_message((number, result)))


def add_rehearsed_version(desk: AnswerDesk, offer: ModelOffer) -> None:
    """Have a desk answer a version, once it has shown that it can."""
    desk.add_version(offer)
    try:
        desk.rehearse(offer.model.version)
    except BaseException:
        desk.remove_version(offer.model.version)
        raise
    spare_from_collections()


def encode_message(message: object) -> bytes:
    """Return a message as it is sent."""
    body = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    return len(body).to_bytes(LENGTH_BYTES) + body


def read_message(stream: BinaryIO) -> Any:
    """Return the next message; None where the other end was closed."""
    length = stream.read(LENGTH_BYTES)
    body = stream.read(int.from_bytes(length))
    is_whole = len(length) == LENGTH_BYTES and len(body) == int.from_bytes(length)
    return pickle.loads(body) if is_whole else None


def spare_from_collections() -> None:
    """Let no garbage collection walk through what is loaded by now.

    Libraries and model are some 300 000 objects that stay: each full collection would stop all
    answers for a fifth of a second.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()
