"""Grids with simulated nodes, over which any strategy trains as over a deployment."""

import traceback
from abc import abstractmethod
from collections.abc import Iterable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

from flwr.app import Context, Error, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

from clients.flower.client_app import read_config
from clients.flower.posterior_client import ContextMemory
from fedcel.errors import RunError, describe_unforeseen, shorten_text
from fedcel.federation import record_names
from fedcel.flower_messages import RUN, SERVER_NODE
from fedcel.runs import ClientStateFolder, partition_folder

CLIENT_APP_RAISED = 2
"""Flower's code of a reply in the place of which the ClientApp raised an exception."""


class Outcome(NamedTuple):
    """Reply of a ClientApp, the node's context after it, and the traceback of a failure."""

    reply: Message
    context: Context
    origin: str = ""


def answer_message(app: ClientApp, message: Message, context: Context) -> Outcome:
    """Let the ClientApp answer a message; whatever it raises is an error in the reply."""
    try:
        return Outcome(app(message, context), context)
    except (Exception, SystemExit) as error:  # an exit would end a process that others need
        reply = make_error(describe_unforeseen(error), message)
        return Outcome(reply, context, shorten_text(traceback.format_exc()))


def make_error(reason: str, message: Message) -> Message:
    """Make the reply of a node that failed at a message."""
    return Message(Error(CLIENT_APP_RAISED, shorten_text(reason)), reply_to=message)


class SimulatedGrid(Grid):
    """Grid of nodes that are contexts in this process; subclasses say how they answer.

    Node k + 2 holds partition k, as `partition-id` in its config says. A client's state travels in
    its context, and only a reply that arrived changes it: whoever trains needs no folder of the
    run's.

    Args:
        nodes: Number of nodes.
        states: Folder of the clients' states; None: contexts keep them.
    """

    def __init__(self, nodes: int, states: Path | None = None) -> None:
        self._states = states
        self.contexts = {
            SERVER_NODE + 1 + k: Context(
                run_id=RUN,
                node_id=SERVER_NODE + 1 + k,
                node_config={"partition-id": k, "num-partitions": nodes},
                state=RecordDict(),
                run_config={},
            )
            for k in range(nodes)
        }
        self.replies: dict[str, Message] = {}
        self._sent = 0

    def set_run(self, run: Any) -> None:
        """Do nothing: there is one run."""

    @property
    def run(self) -> Any:
        """The run's id; there is no app to describe."""
        return SimpleNamespace(run_id=RUN)

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

    @abstractmethod
    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send messages to the nodes; return the messages' new ids."""

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the answers to these messages that have come, each once."""
        return [self.replies.pop(key) for key in message_ids if key in self.replies]

    def _load_context(self, message: Message) -> Context:
        """Return what a node answers a message with: its context, a training's with the state.

        RunError where the state that the message names is not there.
        """
        context = self.contexts[message.metadata.dst_node_id]
        if (folder := self._find_folder(message)) is None:
            return context
        config = read_config(message)
        expected = config.get(record_names.STATE_ROUND)
        start = folder.require_state(
            int(config[record_names.ROUND]), None if expected is None else int(expected)
        )
        loaded = replace(context, state=RecordDict({**context.state}))
        if start.round:
            ContextMemory(loaded).write_state(start.round, start.state or {}, 0)
        return loaded

    def _conclude_message(self, message: Message, outcome: Outcome) -> Message:
        """Keep the context and the state that a reply came with; return the reply."""
        if outcome.origin:
            return outcome.reply
        if folder := self._find_folder(message):
            try:
                number = int(read_config(message)[record_names.ROUND])
                ContextMemory(outcome.context).move_state(number, folder)
            except OSError as error:  # no room for it
                return make_error(describe_unforeseen(error), message)
        self.contexts[message.metadata.dst_node_id] = outcome.context
        return outcome.reply

    def _find_folder(self, message: Message) -> ClientStateFolder | None:
        """Find where the state of a client is that is to train."""
        if self._states is None or message.metadata.message_type != MessageType.TRAIN:
            return None
        client = int(self.contexts[message.metadata.dst_node_id].node_config["partition-id"])
        return ClientStateFolder(partition_folder(self._states, client), client)

    def _new_id(self) -> str:
        self._sent += 1
        return str(self._sent)


class InMemoryGrid(SimulatedGrid):
    """Grid whose nodes answer while a message is sent, in the order of the messages.

    Messages are copied: no node changes another's.

    Args:
        app: Answers the messages.
        nodes: Number of nodes.
        states: Folder of the clients' states; None: contexts keep them.
    """

    def __init__(self, app: ClientApp, nodes: int, states: Path | None = None) -> None:
        super().__init__(nodes, states)
        self.app = app

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Let the nodes answer; return the messages' new ids."""
        return [self._deliver(message) for message in messages]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Return the answers; nobody is late, so `timeout` decides nothing."""
        return self.pull_messages(self.push_messages(messages))

    def _deliver(self, message: Message) -> str:
        message_id = self._new_id()
        try:
            outcome = answer_message(self.app, deepcopy(message), self._load_context(message))
        except RunError as error:
            self.replies[message_id] = make_error(str(error), message)
        else:
            self.replies[message_id] = self._conclude_message(message, outcome)
        return message_id
