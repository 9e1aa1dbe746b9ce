"""Before round 1: which node holds which data, and how much of it."""

import time
from collections.abc import Mapping
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
    """Of each partition, those of nodes lost since among them."""
    own: bool
    """Whether a node's images are its own, not dealt from the run's data."""


def meet(
    grid: Grid,
    clients: int,
    said: ConfigRecord | None = None,
    known: Mapping[int, int] | None = None,
) -> Met:
    """Ask the nodes what they hold; `said` tells them what it has to fit.

    A run that is resumed `known`s how many examples each partition holds: it goes on with those
    whose nodes are there and still hold as many. SettingsError when a new run has not a node that
    answers for each of `clients` partitions, or a resumed one has none.
    """
    partition: dict[int, int] = {}
    examples: dict[int, int] = {}
    own, refused = False, []
    content = RecordDict({wire.CONFIG: said or ConfigRecord()})
    questions = [
        Message(content, dst_node_id=node, message_type=f"query.{wire.COUNT_QUERY}")
        for node in connected(grid, clients, 1 if known else clients)
    ]
    for reply in grid.send_and_receive(questions, timeout=ANSWER_SECONDS):
        holder, held = (-1, -1) if reply.has_error() else claimed(reply)
        if reason := failure(reply):
            refused.append(reason)
        elif not (1 <= held <= MOST_EXAMPLES and 0 <= holder < clients):
            refused.append(f"partition {holder}, {held} examples")
        elif holder in examples:
            refused.append(f"partition {holder} is another's")
        elif known and known.get(holder) != held:
            refused.append(f"partition {holder}, {held} examples, {known.get(holder)} before")
        else:
            partition[reply.metadata.src_node_id] = holder
            examples[holder] = held
            own = own or owned(reply)
    for reason in refused:
        log(WARNING, "A node cannot take part: %s", reason)
    if known and examples:
        for lost in sorted(known.keys() - examples.keys()):
            log(WARNING, "No node holds partition %d any more; the run goes on without it", lost)
        return Met(partition, dict(known), own)
    if len(examples) != clients:
        raise SettingsError(
            f"{len(examples)} partitions answered, clients is {clients}; start the others or set "
            f"clients; refused: {'; '.join(refused[:5]) or 'none'}"
        )
    return Met(partition, examples, own)


def connected(grid: Grid, clients: int, least: int) -> list[int]:
    """Return the nodes once there are as many as `clients`, or after a minute `least` of them.

    SettingsError when fewer come.
    """
    waited = time.monotonic() + WAIT_SECONDS
    while len(nodes := list(grid.get_node_ids())) < clients:
        if time.monotonic() > waited:
            if len(nodes) >= least:
                break
            raise SettingsError(
                f"{len(nodes)} nodes are connected after {WAIT_SECONDS:.0f} s, clients is "
                f"{clients}; start that many nodes or set clients"
            )
        time.sleep(0.1)
    return nodes
