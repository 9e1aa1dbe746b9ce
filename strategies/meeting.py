"""Before round 1: which node holds which data, and how much of it."""

import time
from logging import WARNING

from flwr.app import Message, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid

from fedcel import wire
from fedcel.errors import SettingsError
from strategies.replies import claimed, failure

WAIT_SECONDS = 60.0  # for all nodes to connect before round 1
MOST_EXAMPLES = 10**8  # of one node; a claim beyond would drown all others and cool the chain
ANSWER_SECONDS = 600.0  # for their first answers: a node reads its data before it gives one


def meet(grid: Grid, clients: int) -> tuple[dict[int, int], dict[int, int]]:
    """Return each node's partition, and each partition's number of examples, as the nodes say.

    SettingsError when not all of `clients` partitions are held by a node that answers.
    """
    partition: dict[int, int] = {}
    examples: dict[int, int] = {}
    questions = [
        Message(RecordDict(), dst_node_id=node, message_type=f"query.{wire.COUNT_QUERY}")
        for node in connected(grid, clients)
    ]
    for reply in grid.send_and_receive(questions, timeout=ANSWER_SECONDS):
        if reason := failure(reply):
            log(WARNING, "A node cannot take part: %s", reason)
            continue
        holder, held = claimed(reply)
        if not (1 <= held <= MOST_EXAMPLES and 0 <= holder < clients):
            log(WARNING, "A node cannot take part: partition %s, %s examples", holder, held)
        elif holder in examples:
            log(WARNING, "A node cannot take part: partition %s is another's", holder)
        else:
            partition[reply.metadata.src_node_id] = holder
            examples[holder] = held
    if len(examples) != clients:
        raise SettingsError(
            f"{len(examples)} partitions answered, clients is {clients}; "
            "see the log for the nodes' errors, or set clients"
        )
    return partition, examples


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
