"""Flower without processes: any strategy over nodes that are calls of the ClientApp, one by one."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from threading import Event

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from clients import make_client_app
from fedcel.runs import EventCallback
from fedcel.settings import Settings
from strategies.flower_log import filter_log
from strategies.server_app import train_over_grid

RUN_ID, SERVER_ID = 1, 1


def train_in_memory(
    settings: Settings,
    folder: Path,
    show_round: EventCallback,
    *,
    resume: bool = False,
    measure: bool = True,
) -> None:
    """Train into the run folder by the strategy of the settings; `measure` as in `train_locally`.

    It is the ServerApp's own code and the ClientApp's, so that Ray would give the same model.
    """
    with filter_log(Event(), is_quiet=True), allow_messages():
        grid = InMemoryGrid(make_client_app(settings, folder / "state"), settings.clients)
        train_over_grid(grid, settings, folder, show_round, resume=resume, measure=measure)


@contextmanager
def allow_messages() -> Iterator[None]:
    """Let messages be made: Flower wants to know which task makes them."""
    names = {"_task_id": 1, "_run_id": RUN_ID, "_node_id": SERVER_ID}
    before = {name: getattr(TaskIdentity, name) for name in names}
    for name, value in names.items():
        setattr(TaskIdentity, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(TaskIdentity, name, value)


class InMemoryGrid(Grid):
    """A grid whose nodes answer while a message is sent, in the order of the messages.

    Node k + 2 holds partition k, as `partition-id` in its config says. What a ClientApp raises
    comes back as an error, as from a real node; messages are copied: no node changes another's.
    """

    def __init__(self, app: ClientApp, nodes: int) -> None:
        self.app = app
        self.contexts = {
            SERVER_ID + 1 + k: Context(
                run_id=RUN_ID,
                node_id=SERVER_ID + 1 + k,
                node_config={"partition-id": k, "num-partitions": nodes},
                state=RecordDict(),
                run_config={},
            )
            for k in range(nodes)
        }
        self.replies: dict[str, Message] = {}
        self.sent = 0

    def set_run(self, run: Run) -> None:
        """Do nothing: there is one run."""

    @property
    def run(self) -> Run:
        """Return a run without an app of its own."""
        return Run.create_empty(RUN_ID)

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Return a message; Flower calls this deprecated."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """Return the nodes, ascending."""
        return list(self.contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Let the nodes answer; return the messages' new ids."""
        return [self._deliver(message) for message in messages]

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the answers to these messages, each once."""
        return [self.replies.pop(key) for key in message_ids if key in self.replies]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Return the answers; nobody is late, so `timeout` decides nothing."""
        return self.pull_messages(self.push_messages(messages))

    def _deliver(self, message: Message) -> str:
        """Keep a node's answer and return the message's id."""
        self.sent += 1
        message_id = str(self.sent)
        metadata = message.metadata
        copy = Message(
            deepcopy(message.content),
            metadata.dst_node_id,
            metadata.message_type,
            group_id=metadata.group_id,
        )
        # There is no setter: a SuperLink is meant to do it.
        copy.metadata.__dict__["_message_id"] = message_id
        try:
            reply = self.app(copy, self.contexts[metadata.dst_node_id])
        except Exception as error:  # a node's failure is an answer
            reason = f"{type(error)}:<'{error}'>"
            reply = Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason), reply_to=copy)
        self.replies[message_id] = reply
        return message_id
