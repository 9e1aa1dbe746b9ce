"""Before round 1: which node holds which data, and how much of it."""

import time
from logging import WARNING
from typing import NamedTuple

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid

from fedcel import wire
from fedcel.errors import SettingsError
from strategies.replies import claimed, failure, owned

WAIT_SECONDS = 60.0  # for all nodes to connect before round 1
MOST_EXAMPLES = 10**8  # of one node; a claim beyond would drown all others and cool the chain
ANSWER_SECONDS = 600.0  # for their first answers: a node reads its data before it gives one


class Met(NamedTuple):
    """What the nodes say before round 1."""

    partition: dict[int, int]
    """Of each node."""
    examples: dict[int, int]
    """Of each partition."""
    own: bool
    """Whether a node's images are its own, not dealt from the run's data."""


def meet(grid: Grid, clients: int, said: ConfigRecord | None = None) -> Met:
    """Ask the nodes what they hold; `said` tells them what it has to fit.

    SettingsError when not all of `clients` partitions are held by a node that answers.
    """
    partition: dict[int, int] = {}
    examples: dict[int, int] = {}
    own, refused = False, []
    content = RecordDict({wire.CONFIG: said or ConfigRecord()})
    questions = [
        Message(content, dst_node_id=node, message_type=f"query.{wire.COUNT_QUERY}")
        for node in connected(grid, clients)
    ]
    for reply in grid.send_and_receive(questions, timeout=ANSWER_SECONDS):
        holder, held = (-1, -1) if reply.has_error() else claimed(reply)
        if reason := failure(reply):
            refused.append(reason)
        elif not (1 <= held <= MOST_EXAMPLES and 0 <= holder < clients):
            refused.append(f"partition {holder}, {held} examples")
        elif holder in examples:
            refused.append(f"partition {holder} is another's")
        else:
            partition[reply.metadata.src_node_id] = holder
            examples[holder] = held
            own = own or owned(reply)
    for reason in refused:
        log(WARNING, "A node cannot take part: %s", reason)
    if len(examples) != clients:
        raise SettingsError(
            f"{len(examples)} partitions answered, clients is {clients}; start the others or set "
            f"clients; refused: {'; '.join(refused[:5]) or 'none'}"
        )
    return Met(partition, examples, own)


def connected(grid: Grid, clients: int) -> list[int]:
    """Return the nodes once there are as many as `clients`; SettingsError when they do not come."""
    waited = time.monotonic() + WAIT_SECONDS
    while len(nodes := list(grid.get_node_ids())) < clients:
        if time.monotonic() > waited:
            raise SettingsError(
                f"{len(nodes)} nodes are connected after {WAIT_SECONDS:.0f} s, clients is "
                f"{clients}; start that many nodes or set clients"
            )
        time.sleep(0.1)
    return nodes
