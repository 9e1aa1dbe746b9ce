"""Processes of Ray that train simulated clients: one that dies is replaced, its client tried again.

Flower's own backend puts a dead process back among those that wait for work, where it fails one
client after the other. This one hands messages to Ray in tasks of a few: Ray keeps processes alive,
starts another where one died, and uses the machines that a cluster has at that moment.
"""

import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from inspect import signature
from logging import ERROR, WARNING
from math import ceil
from pathlib import Path
from queue import Empty, Queue, SimpleQueue
from threading import Event, Lock
from time import sleep
from typing import Any, NamedTuple

import flwr
import ray
from flwr.app import Context, Error, Message
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode
from flwr.common.logger import log
from flwr.server.superlink.fleet.vce import backend, vce_api
from flwr.server.superlink.fleet.vce.backend import raybackend
from flwr.server.superlink.linkstate import LinkState
from flwr.simulation.ray_transport.ray_actor import pool_size_from_resources
from ray.exceptions import OutOfMemoryError, RayError, RayTaskError, WorkerCrashedError
from ray.job_config import JobConfig

from fedcel.errors import FailedError, describe_unforeseen, shorten_text
from sims import supervisor

ATTEMPTS = 3
"""How often a client is trained in a round before it is left out, if its process always dies."""
MEMORY_PAUSES = (10.0, 60.0)
"""Seconds before another attempt where memory was short: other work on the machine may end."""
MAX_SHARE = 8
"""Messages that a process answers one after the other in one task: a task costs as a small client
does, and the loss of a process is the loss of them all."""
SHARE_BYTES = 32 * 2**20
"""Of arrays in the messages of a task, at most: large nets train longer than a task takes."""
GATHER_SECONDS = 0.003
"""In which the messages of a round come together."""
LOST_TEXT = 300
"""Characters of what Ray says of a lost process."""
CHOICE = "RayBackend"
"""What Flower's simulation makes its backend of: a name in its module `raybackend`."""
FORWARDER = "add_messages_to_queue"
"""By what Flower's simulation hands messages to its backend: a name in its module `vce_api`."""
FORWARDER_ARGUMENTS = {"state", "queue", "nodes_mapping", "f_stop"}
THREADS = "ThreadPoolExecutor"
"""Whose threads take messages: a name in its module `vce_api`."""
MAX_THREADS = 512
STOP_SECONDS = 0.1
"""Between two looks whether a simulation has ended, while no message comes."""

PRINTER = "print_to_stdstream"
"""By what Ray prints to a driver's terminal: a name in its module `ray._private.worker`."""
WORKER_DIED = "A worker died or was killed"
"""How Ray begins to tell of a process of clients that ended."""
DAEMONS = {"raylet": "Ray's raylet", "gcs_server": "Ray's gcs_server"}
"""What a training on Ray does not outlive: Ray's kinds of processes, and their names for people."""

AppLoader = Callable[[], ClientApp]


class Outcome(NamedTuple):
    """What a client's process made of a message."""

    reply: Message | None
    """None where the ClientApp failed."""
    context: Context
    reason: str = ""
    """Of a failure."""
    origin: str = ""
    """The traceback of a failure."""


class Order(NamedTuple):
    """A message that is to be answered, and where the outcome is put."""

    message: Message
    context: Context
    """Of the node that the message is for."""
    outcome: Future[Outcome]

    @property
    def client(self) -> object:
        """The client's partition."""
        return self.context.node_config.get("partition-id")


class JobWithoutFolders(JobConfig):
    """A job of Ray's whose processes look for modules where PYTHONPATH says, as Flower sets it.

    Ray would put the working folder in front, whose modules may have the names of fedcel's.
    """

    @property
    def _py_driver_sys_path(self) -> list[str]:
        return []

    @_py_driver_sys_path.setter
    def _py_driver_sys_path(self, folders: list[str]) -> None:
        pass


class ClientProcesses(raybackend.RayBackend):
    """Flower's backend on Ray, with tasks in the place of its pool of actors.

    It begins Ray and ends it, but for one that is there already, see `keep_ray`.
    """

    def __init__(self, backend_config: backend.BackendConfig) -> None:
        """Begin Ray where there is none.

        Args:
            backend_config: What Ray is begun with, and what a client takes of a machine.
        """
        self._over = Event()
        self._begins_ray = not ray.is_initialized()
        start: Any = {**backend_config.get("init_args", {}), "job_config": JobWithoutFolders()}
        super().__init__({**backend_config, "init_args": start})
        if self._begins_ray:
            supervisor.say_dependencies(list_ray_processes())

    def build(self, app_fn: AppLoader) -> None:
        """Send the ClientApp to Ray, once for all messages.

        Args:
            app_fn: Loads the ClientApp.
        """
        self._app = ray.put(app_fn)
        # No retries of Ray's own: of a process that was killed for want of memory it has no end.
        options = {**self.client_resources, "max_retries": 0, "name": "ClientApp"}
        self._task = ray.remote(run_client_app).options(**options)
        self._slots = int(pool_size_from_resources(self.client_resources))
        self._lock, self._waiting = Lock(), deque[Order]()
        self._dispatchers = ThreadPoolExecutor(self._slots)

    @property
    def num_workers(self) -> int:
        """How many messages are taken at the same time: as many as wait or are worked on."""
        return self._slots * MAX_SHARE

    def is_worker_idle(self) -> bool:
        """Say that a message may come: it waits until a process is free."""
        return not self._over.is_set()

    def process_message(self, message: Message, context: Context) -> tuple[Message, Context]:
        """Let a process answer a message, and another one where that one dies.

        Args:
            message: For the ClientApp.
            context: Of the node that it is for.

        Returns:
            The reply, an error's among them, and the node's context.
        """
        order = Order(message, context, Future())
        with self._lock:
            self._waiting.append(order)
        self._dispatchers.submit(self._answer_share)
        outcome = order.outcome.result()
        if outcome.reply is not None:
            return outcome.reply, outcome.context
        if outcome.origin:
            log(ERROR, "Client %s failed: %s", order.client, outcome.origin)
        error = Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, outcome.reason)
        return Message(error, reply_to=message), context

    def terminate(self) -> None:
        """End the Ray that this began, with all processes; no message is tried again."""
        self._over.set()
        if dispatchers := getattr(self, "_dispatchers", None):
            dispatchers.shutdown(wait=False)
        if self._begins_ray:
            supervisor.say_dependencies([])
            super().terminate()

    def _answer_share(self) -> None:
        """Let one process answer a share of the messages that wait, one after the other."""
        sleep(GATHER_SECONDS)
        orders = self._take_share()
        try:
            for order, outcome in zip(orders, self._run_together(orders), strict=True):
                order.outcome.set_result(outcome)
        except BaseException as error:
            for order in orders:
                if not order.outcome.done():
                    order.outcome.set_exception(error)

    def _take_share(self) -> list[Order]:
        """Take a process's share of the messages that wait, none where others took them all."""
        with self._lock:
            if not self._waiting:
                return []
            most = max(1, SHARE_BYTES // max(1, count_bytes(self._waiting[0].message)))
            share = min(MAX_SHARE, most, ceil(len(self._waiting) / self._slots))
            return [self._waiting.popleft() for _ in range(share)]

    def _run_together(self, orders: Sequence[Order]) -> Iterator[Outcome]:
        """Run the ClientApp on messages in one process; where they are lost, on each alone."""
        attempt = 1
        if len(orders) > 1 and not self._over.is_set():
            try:
                yield from self._run(orders)
                return
            except RayTaskError:  # what one of them returned cannot travel
                pass
            except RayError as error:
                for order in orders:
                    self._note_loss(order, error, attempt)
                self._wait_for_memory(error, attempt)
                attempt = 2
        for order in orders:
            yield self._run_repeatedly(order, attempt)

    def _run_repeatedly(self, order: Order, first_attempt: int = 1) -> Outcome:
        """Run the ClientApp in one process after the other until one lives to the end."""
        lost = ""
        for attempt in range(first_attempt, ATTEMPTS + 1):
            if self._over.is_set():
                return Outcome(None, order.context, "the run was stopped")
            try:
                return self._run([order])[0]
            except RayTaskError as error:  # what was returned cannot travel
                reason = shorten_text(describe_unforeseen(error.cause))
                return Outcome(None, order.context, reason)
            except RayError as error:  # the process, its machine or what it returned is lost
                lost = self._note_loss(order, error, attempt)
                self._wait_for_memory(error, attempt)
        return Outcome(
            None,
            order.context,
            f"lost in each of {ATTEMPTS} attempts; the last time: {lost}",
        )

    def _run(self, orders: Sequence[Order]) -> list[Outcome]:
        """Run the ClientApp on messages in one process; RayError where it is lost."""
        contents = [(order.message, order.context) for order in orders]
        outcomes: list[Outcome] = ray.get(self._task.remote(self._app, contents))
        return outcomes

    def _note_loss(self, order: Order, error: RayError, attempt: int) -> str:
        """Log how a client was lost, which is returned."""
        lost = describe_loss(error)
        if not self._over.is_set():
            log(
                WARNING,
                "Client %s was lost in attempt %d of %d: %s",
                *(order.client, attempt, ATTEMPTS, lost),
            )
        return lost

    def _wait_for_memory(self, error: RayError, attempt: int) -> None:
        """Let other work on the machine end where memory was short, if there is another attempt."""
        if isinstance(error, OutOfMemoryError) and attempt < ATTEMPTS:
            self._over.wait(MEMORY_PAUSES[attempt - 1])


@contextmanager
def log_ray_messages() -> Iterator[None]:
    """Let what Ray says of its own processes be lines of the log, not raw text between results.

    It has no parameter for it: `log_to_driver` is about what clients print.
    """
    earlier = getattr(ray._private.worker, PRINTER, None)
    if earlier is None:  # another Ray, which prints by other means
        yield
        return
    setattr(ray._private.worker, PRINTER, log_ray_message)
    try:
        yield
    finally:
        setattr(ray._private.worker, PRINTER, earlier)


def log_ray_message(message: Mapping[str, Any], *_: object, **__: object) -> None:
    """Log what Ray says, but for a lost process of a client: that client's own line says it.

    Args:
        message: Of Ray's: `lines`, and whence they are.
    """
    beginning = " ".join("\n".join(message["lines"]).strip().partition("\n")[0].split())
    if not beginning.startswith(WORKER_DIED):
        log(WARNING, "Ray: %s", shorten_text(beginning, LOST_TEXT))


def list_ray_processes() -> list[tuple[int, str]]:
    """List the processes of the Ray that this one began: where one ends, Ray ends this one.

    Returns:
        Ids and names; nothing of a cluster that was there before.
    """
    node = getattr(ray._private.worker, "_global_node", None)
    begun = getattr(node, "all_processes", {})
    listed = [
        (info.process.pid, name) for kind, name in DAEMONS.items() for info in begun.get(kind, ())
    ]
    raylets = [info.process.pid for info in begun.get("raylet", ())]
    agents = [agent for raylet in raylets for agent in find_agents(raylet)]
    return [(agent, "Ray's agent") for agent in agents] + listed


def find_agents(raylet: int) -> list[int]:
    """Find a raylet's agents, which it does not outlive, where the system shows its children."""
    agents = []
    with suppress(OSError):
        for child in Path(f"/proc/{raylet}/task/{raylet}/children").read_text().split():
            if b"agent" in Path(f"/proc/{child}/cmdline").read_bytes().lower():
                agents.append(int(child))
    return agents


def run_client_app(
    load_app: AppLoader, contents: Sequence[tuple[Message, Context]]
) -> list[Outcome]:
    """Run the ClientApp on one message after the other, in a process of Ray's.

    Args:
        load_app: Loads the ClientApp.
        contents: Messages for it, each with the context of the node that it is for.

    Returns:
        Of each message the reply, or why there is none.
    """
    app = load_app()
    return [answer_message(app, message, context) for message, context in contents]


def count_bytes(message: Message) -> int:
    """Count the bytes of a message's arrays."""
    records = message.content.array_records.values()
    return sum(len(array.data) for record in records for array in record.values())


def answer_message(app: ClientApp, message: Message, context: Context) -> Outcome:
    """Let the ClientApp answer a message, whatever it raises."""
    try:
        return Outcome(app(message, context), context)
    except (Exception, SystemExit) as error:  # an exit would end a process that others need
        reason = shorten_text(describe_unforeseen(error))
        return Outcome(None, context, reason, shorten_text(traceback.format_exc()))


def describe_loss(error: RayError) -> str:
    """Say how a client was lost: what Ray says, but for what it does not know.

    Args:
        error: That Ray raised in the place of an answer.

    Returns:
        A part of a sentence.
    """
    if isinstance(error, WorkerCrashedError):
        return "its process ended without an answer: killed, for want of memory perhaps, or crashed"
    return shorten_text(describe_unforeseen(error), LOST_TEXT)


def forward_messages(
    state: LinkState, queue: Queue[Message], nodes_mapping: Mapping[int, int], f_stop: Event
) -> None:
    """Hand messages to the backend as they are sent, in the place of Flower's own function.

    That one asks for every node, ten times a second, whether any message is for it.

    Args:
        state: Takes the messages that the ServerApp sends.
        queue: Of messages for the backend.
        nodes_mapping: Partition by node.
        f_stop: Set when the simulation ends.
    """
    addressees = SimpleQueue[int]()
    store = state.store_message_ins

    def store_message(message: Message) -> str | None:
        message_id = store(message)
        addressees.put(message.metadata.dst_node_id)
        return message_id

    state.store_message_ins = store_message  # type: ignore[method-assign]
    for node in nodes_mapping:  # a message may have been there before
        addressees.put(node)
    while not f_stop.is_set():
        with suppress(Empty):
            node = addressees.get(timeout=STOP_SECONDS)
            for message in state.get_message_ins(node_id=node, limit=1):
                queue.put(message)


@contextmanager
def use_forwarding() -> Iterator[None]:
    """Let simulations of Flower's use `forward_messages`, within the block, and more threads.

    Flower takes no more messages at a time than the machine has cores, and four. It has no
    parameter for either; a Flower that is made otherwise is as slow as it is.
    """
    names = {FORWARDER: forward_messages, THREADS: partial(ThreadPoolExecutor, MAX_THREADS)}
    earlier = {name: value for name, value in vars(vce_api).items() if name in names}
    if (
        earlier.keys() != names.keys()
        or signature(earlier[FORWARDER]).parameters.keys() != FORWARDER_ARGUMENTS
    ):
        yield
        return
    vars(vce_api).update(names)
    try:
        yield
    finally:
        vars(vce_api).update(earlier)


@contextmanager
def use_client_processes() -> Iterator[None]:
    """Let simulations of Flower's use `ClientProcesses`, within the block.

    Flower has no parameter for it: `run_simulation` ignores the name of a backend.

    Raises:
        FailedError: This Flower makes its backend of something else.
    """
    if not issubclass(getattr(raybackend, CHOICE, object), backend.Backend):
        raise FailedError(
            f"Flower {flwr.__version__} has no {raybackend.__name__}.{CHOICE}, which the Ray "
            "engine replaces; use --engine local, or a Flower that fedcel was tested with"
        )
    earlier = getattr(raybackend, CHOICE)
    by_name = getattr(backend, "supported_backends", {})  # of Flower 1.41 and before
    setattr(raybackend, CHOICE, ClientProcesses)
    by_name.update(ray=ClientProcesses)
    try:
        yield
    finally:
        setattr(raybackend, CHOICE, earlier)
        by_name.update(ray=earlier)
