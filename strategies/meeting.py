"""Which node holds which data, and how much of it: before round 1, and when one comes later."""

import time
from collections.abc import Container, Iterable, Mapping
from logging import INFO, WARNING
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
    """What the nodes said."""

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
    nodes = connected(grid, clients, 1 if known else clients)
    met, refused = answered(grid, nodes, range(clients), said, known)
    if known and met.examples:
        for lost in sorted(known.keys() - met.examples.keys()):
            log(WARNING, "No node holds partition %d any more; the run goes on without it", lost)
        return met._replace(examples=dict(known))
    if len(met.examples) != clients:
        raise SettingsError(
            f"{len(met.examples)} partitions answered, clients is {clients}; start the others or "
            f"set clients; refused: {'; '.join(refused[:5]) or 'none'}"
        )
    return met


def rejoined(grid: Grid, met: Met, said: ConfigRecord) -> Met:
    """Return who holds what now: nodes that came later take partitions that nobody connected has.

    A node that returns under the number that it had was never forgotten; nobody is asked unless a
    partition is without a node and a stranger is there. He has to hold as many examples as before.
    """
    there = set(grid.get_node_ids())
    orphans = met.examples.keys() - {met.partition[node] for node in there & met.partition.keys()}
    strangers = sorted(there - met.partition.keys())
    if not (orphans and strangers):
        return met
    found, _ = answered(grid, strangers, orphans, said, met.examples)
    for holder in sorted(found.partition.values()):
        log(INFO, "A node holds partition %d again", holder)
    kept = {node: k for node, k in met.partition.items() if k not in found.examples}
    return Met(kept | found.partition, met.examples, met.own or found.own)


def answered(
    grid: Grid,
    nodes: Iterable[int],
    free: Container[int],
    said: ConfigRecord | None,
    known: Mapping[int, int] | None,
) -> tuple[Met, list[str]]:
    """Return which of the `free` partitions these nodes hold, and why others were refused.

    Where it is `known` how many examples a partition has, they must be as many.
    """
    partition: dict[int, int] = {}
    examples: dict[int, int] = {}
    own, refused = False, []
    content = RecordDict({wire.CONFIG: said or ConfigRecord()})
    kind = f"query.{wire.COUNT_QUERY}"
    questions = [Message(content, dst_node_id=node, message_type=kind) for node in nodes]
    for reply in grid.send_and_receive(questions, timeout=ANSWER_SECONDS):
        holder, held = (-1, -1) if reply.has_error() else claimed(reply)
        if reason := failure(reply):
            refused.append(reason)
        elif not (1 <= held <= MOST_EXAMPLES and holder in free):
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
    return Met(partition, examples, own), refused


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
