"""Grid of Flower's whose nodes are clients on Ray: one whose process dies is trained again.

Clients of a round travel to Ray in tasks of a few. Ray keeps the processes alive, starts another
where one died, and uses the machines that its cluster has at that moment.
"""

import os
import socket
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from logging import ERROR, WARNING
from math import ceil, inf
from pathlib import Path
from types import TracebackType
from typing import Any

import ray
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from ray import cloudpickle
from ray.exceptions import (
    NodeDiedError,
    OutOfMemoryError,
    RayError,
    RayTaskError,
    WorkerCrashedError,
)

from fedcel.errors import EngineError, RunError, describe_unforeseen, shorten_text
from sims.engines.simulated_grid import Outcome, SimulatedGrid, answer_message, make_error
from strategies.flower_log import log

ATTEMPTS = 3
"""How often a client is trained in a round before it is left out, if its process always dies."""
MEMORY_PAUSES = (10.0, 60.0)
"""Seconds before another attempt where memory was short: other work on the machine may end."""
MAX_SHARE = 8
"""Messages that a process answers one after the other in one task: a task costs as a small client
does, and the loss of a process is the loss of them all."""
SHARE_BYTES = 32 * 2**20
"""Of arrays in the messages of a task, at most: large nets train longer than a task takes."""
LOOK_SECONDS = 1.0
"""Between two looks for machines that have joined, while no task ends."""
SILENCE_SECONDS = 10.0
"""Without news of a task, after which the machines are probed; again after as many."""
PROBE_SECONDS = 2.0
"""In which a machine takes a connection."""
LOST_TEXT = 300
"""Characters of what Ray says of a lost process."""


@dataclass
class _Order:
    """A message that is to be answered."""

    message_id: str
    message: Message
    attempts: int = 0
    """In which its process was lost."""
    not_before: float = 0.0
    """Monotonic time of the next attempt."""


class RayGrid(SimulatedGrid):
    """Grid over the Ray that runs; leaving its block ends the clients that still train.

    Args:
        app: Answers the messages.
        nodes: Number of nodes.
        states: Folder of the clients' states, of this machine alone; None: contexts keep them.
    """

    def __init__(self, app: ClientApp, nodes: int, states: Path | None = None) -> None:
        super().__init__(nodes, states)
        self._waiting = deque[_Order]()
        self._retries: list[_Order] = []  # each goes alone: one may have taken the others along
        self._running: dict[Any, list[_Order]] = {}
        self._machines: dict[Any, str] = {}  # task -> Ray's id of the machine that it runs on
        self._silent_machines = set[str]()
        self._next_probe = time.monotonic() + SILENCE_SECONDS
        self._folder = os.getcwd()
        self._path = [os.path.abspath(place) for place in sys.path]
        with _blame_ray():
            self._app = ray.put(cloudpickle.dumps(app))
            self._lost_machines = _list_lost(ray.nodes())
        self._task = _make_task()

    def __enter__(self) -> "RayGrid":
        """Return the grid."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        origin: TracebackType | None,
    ) -> None:
        """End the tasks that still run."""
        if ray.is_initialized():
            self._cancel([*self._running])

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Hand messages to Ray; return their new ids."""
        orders = [_Order(self._new_id(), message) for message in messages]
        self._waiting.extend(orders)
        self._submit()
        return [order.message_id for order in orders]

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the answers to these messages that have come, each once."""
        self._advance(0)
        return super().pull_messages(message_ids)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Return the answers that come within `timeout` seconds; whoever is late is ended."""
        missing = set(self.push_messages(messages))
        deadline = time.monotonic() + (inf if timeout is None else timeout)
        replies: list[Message] = []
        while missing and (seconds := deadline - time.monotonic()) > 0:
            self._advance(min(seconds, LOOK_SECONDS))
            arrived = missing & self.replies.keys()
            replies += super().pull_messages(sorted(arrived, key=int))
            missing -= arrived
        self._forget(missing)
        return replies

    def _advance(self, timeout: float) -> None:
        """Hand over what waits, and take what ended, or ends within `timeout` seconds."""
        self._submit()
        if not self._running:  # all are to be tried again later
            time.sleep(timeout)
            return
        with _blame_ray():
            ended: list[Any] = ray.wait([*self._running], timeout=timeout)[0]
            items = [(task, next(task)) for task in ended]
        for task, item in items:
            self._take(task, item)
        is_due = not ended and time.monotonic() >= self._next_probe
        if is_due:
            self._probe_machines()
        if ended or is_due:
            self._next_probe = time.monotonic() + SILENCE_SECONDS

    def _take(self, task: Any, item: Any) -> None:
        """Take what a task yields: the machine that it runs on, then the outcomes."""
        if task not in self._machines:
            with suppress(RayError):  # its process is lost: it yields nothing more
                self._machines[task] = ray.get(item)
                return
        self._machines.pop(task, None)
        self._conclude(item, self._running.pop(task))

    def _probe_machines(self) -> None:
        """Tell which machines are silent, and give up the tasks of those that Ray has given up.

        A machine without power resets no connection: Ray marks it as dead within a minute, but
        waits for what it was to answer for seven.
        """
        with _blame_ray():
            machines = ray.nodes()
        lost = _list_lost(machines)
        silent = {
            machine["NodeManagerAddress"]
            for machine in machines
            if machine["NodeID"] not in lost and not takes_connections(machine)
        }
        orders = [order for orders in self._running.values() for order in orders]
        for address in sorted(silent - self._silent_machines):
            log(
                WARNING,
                "%s of the Ray cluster is silent. Waiting for clients %s; Ray gives a machine up "
                "after about a minute, and its clients are trained elsewhere",
                *(address, ", ".join(str(self._client(order)) for order in orders)),
            )
        if lost.keys() - self._lost_machines.keys():
            self._give_up(lost)
        self._silent_machines, self._lost_machines = silent, lost

    def _give_up(self, lost: Mapping[str, str]) -> None:
        """Try the clients of lost machines again, and of tasks that have not told theirs."""
        for task, orders in [*self._running.items()]:
            machine = self._machines.get(task, "")
            if not machine or machine in lost:
                self._cancel([task])
                for order in orders:
                    error = NodeDiedError(f"{lost.get(machine, 'its machine')} is lost")
                    self._note_loss(order, error)

    def _submit(self) -> None:
        """Keep as many tasks at Ray as it has processors, and one that waits for the next."""
        if not (self._waiting or self._retries):
            return
        with _blame_ray():
            processors = max(1, int(ray.cluster_resources().get("CPU", 1)))
            while len(self._running) <= processors and (orders := self._take_share(processors)):
                contents = []
                for order in [*orders]:
                    try:
                        contents.append((order.message, self._load_context(order.message)))
                    except RunError as error:
                        orders.remove(order)
                        self._fail(order, str(error))
                if orders:
                    packed = cloudpickle.dumps(contents)
                    task = self._task.remote(self._folder, self._path, self._app, packed)
                    self._running[task] = orders

    def _take_share(self, processors: int) -> list[_Order]:
        """Take a client that is to be tried again, or a process's share of those that wait."""
        now = time.monotonic()
        for order in self._retries:
            if order.not_before <= now:
                self._retries.remove(order)
                return [order]
        if not self._waiting:
            return []
        most = max(1, SHARE_BYTES // max(1, _count_bytes(self._waiting[0].message)))
        share = min(MAX_SHARE, most, ceil(len(self._waiting) / processors))
        return [self._waiting.popleft() for _ in range(share)]

    def _conclude(self, task: Any, orders: list[_Order]) -> None:
        """Keep the replies of a task, or try its clients again."""
        try:
            outcomes: list[Outcome] = ray.get(task)
        except RayTaskError as error:  # what one of them returned cannot travel
            if len(orders) > 1:
                self._retries += orders
            else:
                self._fail(orders[0], describe_unforeseen(error.cause))
        except RayError as error:  # the process, its machine or what it returned is lost
            for order in orders:
                self._note_loss(order, error)
        else:
            for order, outcome in zip(orders, outcomes, strict=True):
                if outcome.origin:
                    log(ERROR, "Client %s failed: %s", self._client(order), outcome.origin)
                self.replies[order.message_id] = self._conclude_message(order.message, outcome)

    def _note_loss(self, order: _Order, error: RayError) -> None:
        """Log how a client was lost, and try it again; later where memory was short."""
        order.attempts += 1
        lost = _describe_loss(error)
        log(
            WARNING,
            "Client %s was lost in attempt %d of %d: %s",
            *(self._client(order), order.attempts, ATTEMPTS, lost),
        )
        if order.attempts == ATTEMPTS:
            self._fail(order, f"lost in each of {ATTEMPTS} attempts; the last time: {lost}")
            return
        if isinstance(error, OutOfMemoryError):
            order.not_before = time.monotonic() + MEMORY_PAUSES[order.attempts - 1]
        self._retries.append(order)

    def _fail(self, order: _Order, reason: str) -> None:
        self.replies[order.message_id] = make_error(reason, order.message)

    def _client(self, order: _Order) -> object:
        return self.contexts[order.message.metadata.dst_node_id].node_config["partition-id"]

    def _forget(self, message_ids: set[str]) -> None:
        """Give up messages that nobody waits for any more, and end the processes that have them."""
        self._waiting = deque(o for o in self._waiting if o.message_id not in message_ids)
        self._retries = [o for o in self._retries if o.message_id not in message_ids]
        late = [
            task
            for task, orders in self._running.items()
            if all(order.message_id in message_ids for order in orders)
        ]
        self._cancel(late)

    def _cancel(self, tasks: list[Any]) -> None:
        for task in tasks:
            del self._running[task]
            self._machines.pop(task, None)
            ray.cancel(task, force=True)


def _make_task() -> Any:
    """Make the remote function, which looks for modules where this process does.

    It yields the machine that it runs on, then the outcomes.

    It travels by value, as it is nested, and takes what it gets as bytes: nothing of fedcel's is
    looked for before.
    """

    def answer(folder: str, path: list[str], app: bytes, contents: bytes) -> Iterator[object]:
        import os
        import sys
        from contextlib import suppress

        yield ray.get_runtime_context().get_node_id()
        with suppress(OSError):  # another machine may not have it
            os.chdir(folder)
        sys.path[:] = [*path, *(place for place in sys.path if place not in path)]
        from sims.engines.ray_grid import answer_messages

        yield answer_messages(app, contents)

    # No retries of Ray's own: of a process that was killed for want of memory it has no end.
    options = {"num_cpus": 1, "num_gpus": 0, "max_retries": 0, "name": "ClientApp"}
    return ray.remote(answer).options(num_returns="streaming", **options)


_load_app = lru_cache(1)(cloudpickle.loads)


def answer_messages(app: bytes, contents: bytes) -> list[Outcome]:
    """Let a pickled ClientApp answer messages, pickled with their contexts, in Ray's process."""
    pairs: list[tuple[Message, Context]] = cloudpickle.loads(contents)
    return [answer_message(_load_app(app), message, context) for message, context in pairs]


def _list_lost(machines: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return the machines that Ray has given up: id -> address."""
    return {m["NodeID"]: m["NodeManagerAddress"] for m in machines if not m["Alive"]}


def takes_connections(machine: Mapping[str, Any]) -> bool:
    """Whether a machine answers."""
    address = machine["NodeManagerAddress"], machine["NodeManagerPort"]
    try:
        socket.create_connection(address, PROBE_SECONDS).close()
    except OSError:
        return False
    return True


def _count_bytes(message: Message) -> int:
    """Count the bytes of a message's arrays."""
    records = message.content.array_records.values()
    return sum(len(array.data) for record in records for array in record.values())


def _describe_loss(error: RayError) -> str:
    """Describe how a client was lost: what Ray says, but for what it does not know."""
    if isinstance(error, WorkerCrashedError):
        return "its process ended without an answer: killed, for want of memory perhaps, or crashed"
    return shorten_text(describe_unforeseen(error), LOST_TEXT)


@contextmanager
def _blame_ray() -> Iterator[None]:
    try:
        yield
    except (RayError, ConnectionError) as error:
        raise EngineError(f"Ray broke down: {describe_unforeseen(error)}") from error
