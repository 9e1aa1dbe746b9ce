"""Processes of Ray that train simulated clients: one that dies is replaced, its client tried again.

Flower's own backend puts a dead process back among those that wait for work, where it fails one
client after the other. This one hands every message to Ray as a task: Ray keeps processes alive,
starts another where one died, and uses the machines that a cluster has at that moment.
"""

import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from logging import ERROR, WARNING
from threading import Event
from typing import NamedTuple

import flwr
import ray
from flwr.app import Context, Error, Message
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode
from flwr.common.logger import log
from flwr.server.superlink.fleet.vce import backend
from flwr.server.superlink.fleet.vce.backend import raybackend
from flwr.simulation.ray_transport.ray_actor import pool_size_from_resources
from ray.exceptions import OutOfMemoryError, RayError, RayTaskError, WorkerCrashedError

from fedcel.errors import FailedError, describe_unforeseen, shorten_text

ATTEMPTS = 3
"""How often a client is trained in a round before it is left out, if its process always dies."""
MEMORY_PAUSES = (10.0, 60.0)
"""Seconds before another attempt where memory was short: other work on the machine may end."""
LOST_TEXT = 300
"""Characters of what Ray says of a lost process."""
CHOICE = "RayBackend"
"""What Flower's simulation makes its backend of: a name in its module `raybackend`."""

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


class ClientProcesses(raybackend.RayBackend):
    """Flower's backend on Ray, with tasks in the place of its pool of actors."""

    def build(self, app_fn: AppLoader) -> None:
        """Send the ClientApp to Ray, once for all messages.

        Args:
            app_fn: Loads the ClientApp.
        """
        self._over = Event()
        self._app = ray.put(app_fn)
        # No retries of Ray's own: of a process that was killed for want of memory it has no end.
        options = {**self.client_resources, "max_retries": 0, "name": "ClientApp"}
        self._task = ray.remote(run_client_app).options(**options)

    @property
    def num_workers(self) -> int:
        """How many clients train at the same time."""
        return int(pool_size_from_resources(self.client_resources))

    def is_worker_idle(self) -> bool:
        """Say that a message may come: Ray lets it wait until a process is free."""
        return not self._over.is_set()

    def process_message(self, message: Message, context: Context) -> tuple[Message, Context]:
        """Let a process answer a message, and another one where that one dies.

        Args:
            message: For the ClientApp.
            context: Of the node that it is for.

        Returns:
            The reply, an error's among them, and the node's context.
        """
        client = context.node_config.get("partition-id")
        outcome = self._run_repeatedly(message, context, client)
        if outcome.reply is not None:
            return outcome.reply, outcome.context
        if outcome.origin:
            log(ERROR, "Client %s failed: %s", client, outcome.origin)
        error = Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, outcome.reason)
        return Message(error, reply_to=message), context

    def terminate(self) -> None:
        """End Ray and with it all processes; messages under way are not tried again."""
        self._over.set()
        super().terminate()

    def _run_repeatedly(self, message: Message, context: Context, client: object) -> Outcome:
        """Run the ClientApp in one process after the other until one lives to the end."""
        lost = ""
        for attempt in range(1, ATTEMPTS + 1):
            if self._over.is_set():
                return Outcome(None, context, "the run was stopped")
            try:
                outcome: Outcome = ray.get(self._task.remote(self._app, message, context))
                return outcome
            except RayTaskError as error:  # what was returned cannot travel
                return Outcome(None, context, shorten_text(describe_unforeseen(error.cause)))
            except RayError as error:  # the process, its machine or what it returned is lost
                lost = describe_loss(error)
                if not self._over.is_set():
                    log(
                        WARNING,
                        "Client %s was lost in attempt %d of %d: %s",
                        *(client, attempt, ATTEMPTS, lost),
                    )
                if isinstance(error, OutOfMemoryError) and attempt < ATTEMPTS:
                    self._over.wait(MEMORY_PAUSES[attempt - 1])
        return Outcome(
            None,
            context,
            f"lost in each of {ATTEMPTS} attempts; the last time: {lost}",
        )


def run_client_app(load_app: AppLoader, message: Message, context: Context) -> Outcome:
    """Run the ClientApp on a message, in a process of Ray's.

    Args:
        load_app: Loads the ClientApp.
        message: For it.
        context: Of the node that it is for.

    Returns:
        The reply, or why there is none.
    """
    try:
        return Outcome(load_app()(message, context), context)
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
            "engine replaces; use --engine processes, or a Flower that fedcel was tested with"
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
