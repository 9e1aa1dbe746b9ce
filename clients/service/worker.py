"""Worker that answers queries: a queue in front, a process behind it.

It has the ledger and the model, and does one thing after the other, with an interpreter and a core
of its own. Both processes speak over a pair of sockets that nobody else has, in the order of the
requests: each message is its length in eight bytes, then a pickle. The process ends when the
service's end of the pair is closed, however the service ended, and never by a signal that was meant
for the service.
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
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Generic, Self, TypeVar, final

import torch

from clients.service.model_offer import ModelOffer
from clients.service.private_answers import PrivateAnswer, PrivateAnswerer, Query
from clients.service.problems import ProblemError, ProblemKind, describe_place
from fedcel.errors import FedcelError, LedgerError
from fedcel.privacy.ledger import Ledger, LedgerAddress, Refusal

MAX_LINGER_SECONDS = 0.01
"""Longest wait of its first item for others."""
LENGTH_BYTES = 8
CLOSE_SECONDS = 20.0
"""Longest wait, at the end, for pending requests. What is cut off leaves nothing."""
END_SECONDS = 10.0
"""Longest wait for the process's end once its work is done."""
OWN_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that a terminal or a supervisor may send to the whole group."""

Phases = dict[str, float]
"""Seconds of each part of a batch: heads, noise, write, charge."""
Item = TypeVar("Item")
Result = TypeVar("Result")


class AnsweringError(Exception):
    """Unexpected failure of a worker; type and place of what failed, never its words."""


@final
class AnswerWorker:
    """Answers queries about a model, charged to a ledger.

    Every method raises LedgerError where the ledger cannot be read or written.
    """

    def __init__(self, ledger: LedgerAddress, offer: ModelOffer) -> None:
        model, mechanism, calibration, _ = offer
        # An answer for nobody: some libraries are loaded when they are first used.
        model.predict(torch.zeros(1, model.net.features))
        mechanism.answer(torch.zeros(1, model.classes))
        self.ledger = Ledger.open(ledger)
        self._answerer = PrivateAnswerer(model, mechanism, self.ledger, calibration)

    def answer(self, queries: Sequence[Query]) -> tuple[list[PrivateAnswer | Refusal], Phases]:
        """Charge and answer queries, see `PrivateAnswerer.answer`."""
        return self._answerer.answer(queries), dict(self._answerer.phases)

    def ask_ledger(self, method: Callable[..., Result], *arguments: object) -> Result:
        """Return the result of a method of `Ledger`."""
        return method(self.ledger, *arguments)


class ProcessWorker:
    """A worker in a process of its own, which starts now and ends with the context.

    It works on one batch while the event loop reads the queries of the next.
    """

    _writer: asyncio.StreamWriter
    _replies: asyncio.Task[None] | None = None

    def __init__(self) -> None:
        self._connection, other_end = socket.socketpair()
        with other_end:
            self._process = start_process(other_end)
        self._pending: deque[asyncio.Future[Any]] = deque()
        self._is_closing = False
        self._has_ended = False

    def __enter__(self) -> Self:
        """Return this worker."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the process."""
        self.end()

    async def open(
        self, ledger: LedgerAddress, offer: ModelOffer, on_end: Callable[[], None]
    ) -> None:
        """Have the process open the ledger; `on_end` is called where it ends by itself."""
        reader, self._writer = await asyncio.open_connection(sock=self._connection)
        self._replies = asyncio.create_task(self._read_replies(reader, on_end))
        await self.call(AnswerWorker, ledger, offer)

    async def call(self, method: Callable[..., Result], *arguments: object) -> Result:
        """Return a result of a method of `AnswerWorker`; LedgerError once the process has ended."""
        if self._has_ended:
            raise LedgerError("the process that has the ledger has ended; start the service again")
        message = encode_message((method, arguments))  # where this fails, nothing was asked
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._pending.append(future)
        self._writer.write(message)
        return await future

    async def close(self) -> None:
        """Do what was asked, then close the ledger and end the process."""
        self._is_closing = True
        try:
            if self._replies is not None:
                with suppress(LedgerError, AnsweringError, TimeoutError):
                    async with asyncio.timeout(CLOSE_SECONDS):
                        await self.call(AnswerWorker.ask_ledger, Ledger.close)
                self._writer.close()
        finally:
            await asyncio.to_thread(self.end)
        if self._replies is not None:
            await self._replies

    def end(self) -> None:
        """End the process, if it still runs."""
        self._connection.close()
        if self._replies is None or self._pending:  # it still loads what it needs, or hangs
            self._process.kill()
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    async def _read_replies(self, reader: asyncio.StreamReader, on_end: Callable[[], None]) -> None:
        """Give each reply to its request; at the process's end fail all that still wait."""
        try:
            with suppress(asyncio.IncompleteReadError, ConnectionError):
                while True:
                    length = int.from_bytes(await reader.readexactly(LENGTH_BYTES))
                    reply = pickle.loads(await reader.readexactly(length))
                    future = self._pending.popleft()
                    if future.done():  # the caller has gone
                        continue
                    if isinstance(reply, Exception):
                        future.set_exception(reply)
                    else:
                        future.set_result(reply)
        finally:
            self._has_ended = True
            for future in self._pending:
                if not future.done():
                    future.set_exception(LedgerError("the process that has the ledger has ended"))
            self._pending.clear()
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
    """Answer over the socket whose number is the first argument, until the other end is closed."""
    torch.set_num_threads(1)  # batches are small; more threads would only wait for each other
    worker: AnswerWorker | None = None
    with (
        socket.socket(fileno=int(sys.argv[1])) as connection,
        connection.makefile("rb") as stream,
        suppress(ConnectionError),
    ):
        while length := stream.read(LENGTH_BYTES):
            result: object = None
            try:
                method, arguments = pickle.loads(stream.read(int.from_bytes(length)))
                if method is AnswerWorker:
                    worker = AnswerWorker(*arguments)
                    spare_from_collections()
                else:
                    result = method(worker, *arguments)
            except FedcelError as error:
                result = error
            except Exception as error:  # its words may repeat what was sent
                result = AnsweringError(describe_place(error))
            connection.sendall(encode_message(result))


def encode_message(content: object) -> bytes:
    """Return content as it is sent."""
    body = pickle.dumps(content, pickle.HIGHEST_PROTOCOL)
    return len(body).to_bytes(LENGTH_BYTES) + body


def spare_from_collections() -> None:
    """Let no garbage collection walk through what is loaded by now.

    Libraries and model are some 300 000 objects that stay: each full collection would stop all
    answers for a fifth of a second.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()


@final
class Batcher(Generic[Item, Result]):
    """Hands items that wait at the same time to `work`, which returns one result for each.

    At most `max_waiting` items wait, at most `max_batch` are a batch, at most `at_once` batches are
    under way. It belongs to the event loop in which it is made.

    A batch begins as soon as its share of all that were under way at the end of the last one is
    waiting again, or no more come. With two at once, of half of them each, this process and that
    which answers are both at work.
    """

    def __init__(
        self,
        work: Callable[[Sequence[Item]], Awaitable[Sequence[Result]]],
        *,
        max_batch: int,
        max_waiting: int,
        at_once: int,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.work = work
        self.at_once = at_once
        self.max_batch = max_batch
        self.max_waiting = max_waiting
        self.waiting: deque[tuple[Item, asyncio.Future[Result]]] = deque()
        self._enough = 1
        """With so many waiting a batch begins at once."""
        self._under_way: dict[asyncio.Task[None], int] = {}
        """Batches at work, and their sizes."""
        self._lingering: asyncio.Task[None] | None = None
        self._is_closed = False

    async def submit(self, item: Item) -> Result:
        """Return the item's result; ProblemError at once where there is no room."""
        if self._is_closed or len(self.waiting) >= self.max_waiting:
            raise ProblemError(ProblemKind.BUSY, "Ask again with the same id.", retry_after=1.0)
        future: asyncio.Future[Result] = self.loop.create_future()
        self.waiting.append((item, future))
        self._begin_if_due()
        return await future

    async def close(self) -> None:
        """Take no more, answer all that waits, end."""
        self._is_closed = True
        self._begin_if_due()
        while self._under_way:  # the end of one begins the next
            await asyncio.wait(self._under_way)

    def _begin_if_due(self) -> None:
        """Begin a batch where enough wait for it, else soon."""
        if len(self._under_way) == self.at_once or not self.waiting:
            return
        if len(self.waiting) >= self._enough or self._is_closed:
            self._begin()
        elif self._lingering is None and not self._under_way:
            self._lingering = self.loop.create_task(self._linger())

    async def _linger(self) -> None:
        """Begin a batch once no more come."""
        deadline = self.loop.time() + MAX_LINGER_SECONDS
        count = 0
        while len(self.waiting) > count and self.loop.time() < deadline:
            count = len(self.waiting)
            await asyncio.sleep(0)
        self._lingering = None
        self._begin()

    def _begin(self) -> None:
        """Take a batch from the queue, and have it worked on."""
        if self._lingering is not None:
            self._lingering.cancel()
            self._lingering = None
        size = min(len(self.waiting), self.max_batch)
        batch = [self.waiting.popleft() for _ in range(size)]
        self._under_way[self.loop.create_task(self._work_on(batch))] = size

    async def _work_on(self, batch: list[tuple[Item, asyncio.Future[Result]]]) -> None:
        """Have a batch worked on, tell the submitters, and begin the next batch."""
        results: Sequence[Result] | Exception
        try:
            results = await self.work([item for item, _ in batch])
            if len(results) != len(batch):
                raise ValueError(f"{len(results)} results for {len(batch)} items; must be as many")
        except Exception as error:  # each submitter is told, the next batch is worked on
            results = error
        for place, (_, future) in enumerate(batch):
            if future.done():  # the submitter has gone
                continue
            if isinstance(results, Exception):
                future.set_exception(results)
            else:
                future.set_result(results[place])
        share = (sum(self._under_way.values()) + len(self.waiting)) // self.at_once
        self._enough = min(max(1, share), self.max_batch)
        task = asyncio.current_task()
        assert task is not None
        del self._under_way[task]
        self._begin_if_due()
