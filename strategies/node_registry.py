"""Which node holds which data, and how much of it: before round 1, and when one comes later."""

import time
from collections.abc import Container, Iterable, Mapping
from logging import INFO, WARNING
from typing import NamedTuple

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid

from fedcel.errors import SettingsError
from fedcel.federation import record_names
from strategies.validate_reply import claimed, failure, owned

WAIT_SECONDS = 60.0  # for all nodes to connect before round 1
MOST_EXAMPLES = 10**8  # of one node; a claim beyond would drown all others and cool the chain
ANSWER_SECONDS = 600.0  # for their first answers: a node reads its data before it gives one
NONE = -1  # in the place of a partition


class Met(NamedTuple):
    """What the nodes said."""

    partition: dict[int, int]
    """Of each node."""
    examples: dict[int, int]
    """Of each partition, those of nodes lost since among them."""
    own: bool
    """Whether a node's images are its own, not dealt from the run's data."""
    owner: Mapping[int, int] = {}
    """The node that was the first to hold each partition: another has it only while it is away."""
    vain: Mapping[int, int] = {}
    """Nodes that were asked in vain, and the partition for which one may be asked again."""


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
    met, refused = gathered(grid, clients, said or ConfigRecord(), known or {})
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


def gathered(
    grid: Grid, clients: int, said: ConfigRecord, known: Mapping[int, int]
) -> tuple[Met, list[str]]:
    """Ask every node once, as they come, until all partitions are found or a minute is over.

    Nobody is asked before as many as `clients` are there, or the minute is over. Returns why nodes
    were refused, too. SettingsError when fewer came than are needed: all, one in a resumed run.
    """
    expected = known or dict.fromkeys(range(clients))
    limit, over = time.monotonic() + WAIT_SECONDS, False
    met, refused = Met({}, {}, False), list[str]()
    while len(met.examples) < clients and not over:
        over, nodes = time.monotonic() > limit, list(grid.get_node_ids())
        if over and len(nodes) < (1 if known else clients):
            raise SettingsError(
                f"{len(nodes)} nodes are connected after {WAIT_SECONDS:.0f} s, clients is "
                f"{clients}; start that many nodes or set clients"
            )
        new = [node for node in nodes if node not in met.partition and node not in met.vain]
        if new and (over or len(nodes) >= clients):
            found, why = answered(grid, new, expected, met.examples, said, ANSWER_SECONDS)
            met, refused = joined(met, found), refused + why
        elif not over:
            time.sleep(0.1)
    return met, refused


def rejoined(grid: Grid, met: Met, said: ConfigRecord, timeout: float) -> Met:
    """Return who holds what now: nodes that came later take partitions that nobody connected has.

    A node that returns under the number that it had was never forgotten, and has its partition
    again, whoever took it meanwhile. Nobody is asked unless a partition is without a node and a
    stranger is there. He has to hold as many examples as before, and is asked once: again only
    where his partition was another's then.
    """
    there = set(grid.get_node_ids())
    met = returned(met, there)
    held = {k for node, k in met.partition.items() if node in there}
    orphans = met.examples.keys() - held
    unknown = there - met.partition.keys()
    strangers = [n for n in sorted(unknown) if n not in met.vain or met.vain[n] in orphans]
    if not (orphans and strangers):
        return met
    found, _ = answered(grid, strangers, met.examples, held, said, timeout)
    for holder in sorted(found.examples):
        log(INFO, "A node holds partition %d again", holder)
    return joined(met, found)


def returned(met: Met, there: Container[int]) -> Met:
    """Return who holds what once nodes that are there again have back what was first theirs."""
    mine = {node: k for k, node in met.owner.items() if node in there}
    back = {node: k for node, k in mine.items() if met.partition.get(node) != k}
    for holder in sorted(back.values()):
        log(INFO, "The node that held partition %d at first holds it again", holder)
    kept = {node: k for node, k in met.partition.items() if k not in back.values()}
    return met._replace(partition=kept | back)


def joined(met: Met, found: Met) -> Met:
    """Return both together: who was found has a partition in the place of who had it."""
    kept = {node: k for node, k in met.partition.items() if k not in found.examples}
    first = {k: node for node, k in found.partition.items()}
    return Met(
        kept | found.partition,
        met.examples | found.examples,
        met.own or found.own,
        {**first, **met.owner},
        {**met.vain, **found.vain},
    )


def answered(
    grid: Grid,
    nodes: Iterable[int],
    expected: Mapping[int, int | None],
    taken: Container[int],
    said: ConfigRecord,
    timeout: float,
) -> tuple[Met, list[str]]:
    """Return which partitions these nodes hold, of those not `taken`; why others were refused.

    `expected` are all partitions, and how many examples each must have, where that is known.
    """
    found, refused = Met({}, {}, False), list[str]()
    vain = dict.fromkeys(nodes, NONE)
    content, kind = RecordDict({record_names.CONFIG: said}), f"query.{record_names.COUNT_QUERY}"
    questions = [Message(content, dst_node_id=node, message_type=kind) for node in vain]
    for reply in grid.send_and_receive(questions, timeout=timeout):
        node = reply.metadata.src_node_id
        holder, held = (NONE, NONE) if reply.has_error() else claimed(reply)
        reason = failure(reply) or misfit(holder, held, expected)
        if reason is None and (holder in taken or holder in found.examples):
            reason, vain[node] = f"partition {holder} is another's", holder
        if reason:
            refused.append(reason)
            continue
        vain.pop(node, None)
        found.partition[node], found.examples[holder] = holder, held
        found = found._replace(own=found.own or owned(reply))
    for reason in refused:
        log(WARNING, "A node cannot take part: %s", reason)
    return found._replace(vain=vain), refused


def misfit(holder: int, held: int, expected: Mapping[int, int | None]) -> str | None:
    """Say why nobody can hold what a node says that it holds, or None."""
    if not (1 <= held <= MOST_EXAMPLES and holder in expected):
        return f"partition {holder}, {held} examples"
    if expected[holder] not in (None, held):
        return f"partition {holder}, {held} examples, {expected[holder]} before"
    return None
