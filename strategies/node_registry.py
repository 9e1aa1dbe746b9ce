"""Registry of nodes and their partitions, before round 1 and when nodes change."""

import time
from collections.abc import Container, Iterator, Mapping, Sequence
from logging import INFO, WARNING
from typing import NamedTuple

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from fedcel.errors import SettingsError
from fedcel.federation import digest_code, record_names
from strategies.flower_log import log, show_progress
from strategies.validate_reply import Claim, find_sender, is_node_lost, read_claim, to_printable

WAIT_SECONDS = 60.0  # for all nodes to connect before round 1
MAX_EXAMPLES = 10**8  # of one node; a claim beyond would drown all others and cool the chain
_SETTLE_SECONDS = 3.0  # without a change, after which the connected nodes are counted
ANSWER_SECONDS = 600.0  # for their first answers: a node reads its data before it gives one
AT_ONCE = 1000  # nodes that are asked together; Flower's simulation is quadratic in their number
_NO_PARTITION = -1


class NodeRegistry(NamedTuple):
    """Partitions that the nodes of a run hold, and how much data."""

    partitions: dict[int, int]
    """Node -> the partition that it holds."""
    examples: dict[int, int]
    """Partition -> N_k; those of nodes lost since among them."""
    has_node_data: bool = False
    """Whether a node's images are its own, not dealt from the run's data."""
    first_nodes: Mapping[int, int] = {}
    """Partition -> the node that held it first: another has it only while that one is away."""
    refused: Mapping[int, int] = {}
    """Node that was refused -> the partition for which it may be asked again, or -1."""

    @property
    def nodes(self) -> dict[int, int]:
        """Return the node of each partition."""
        return {partition: node for node, partition in self.partitions.items()}


def count_nodes(grid: Grid) -> int:
    """Count the connected nodes, once no more come; SettingsError where there are none."""
    begin = changed = time.monotonic()
    count = 0
    while (now := time.monotonic()) - begin < WAIT_SECONDS:
        if (current := len(list(grid.get_node_ids()))) != count:
            count, changed = current, now
        if count and now - changed >= _SETTLE_SECONDS:
            return count
        time.sleep(0.1)
    if not count:
        raise SettingsError(f"no node is connected after {WAIT_SECONDS:.0f} s; start one")
    return count


def register_nodes(
    grid: Grid,
    clients: int,
    requirements: ConfigRecord | None = None,
    earlier: Mapping[int, int] | None = None,
    *,
    recount: bool = False,
) -> NodeRegistry:
    """Ask the nodes what they hold, before the first round.

    Nobody is queried before as many as `clients` are there, or a minute is over; then each once, as
    they come, until all partitions are found. A resumed run goes on with those partitions of
    `earlier` whose nodes are there and still hold as many examples, with `recount` any number.
    The images of nodes that bring their own have to fit the `requirements`.

    Raises:
        SettingsError: A new run has not a node for each partition, or a resumed one has none.
    """
    earlier, requirements = earlier or {}, requirements or ConfigRecord()
    expected: Mapping[int, int | None] = earlier or dict.fromkeys(range(clients))
    expected = dict.fromkeys(expected) if recount else expected
    deadline, is_late = time.monotonic() + WAIT_SECONDS, False
    registry, reasons, silent = NodeRegistry({}, {}), list[str](), 0
    while len(registry.examples) < clients and not is_late:
        is_late = time.monotonic() > deadline
        nodes = list(grid.get_node_ids())
        if is_late and len(nodes) < (1 if earlier else clients):
            raise SettingsError(
                f"{len(nodes)} nodes are connected after {WAIT_SECONDS:.0f} s, clients is "
                f"{clients}; start that many nodes or set clients"
            )
        new = [n for n in nodes if n not in registry.partitions and n not in registry.refused]
        if new and (is_late or len(nodes) >= clients):
            occupied = registry.examples
            answers, refusals, unanswered = _query_nodes(
                grid,
                new,
                expected,
                occupied,
                requirements=requirements,
                timeout=ANSWER_SECONDS,
            )
            registry = _merge_registries(registry, answers)
            reasons, silent = reasons + refusals, silent + unanswered
        elif not is_late:
            time.sleep(0.1)
    examples = registry.examples
    if earlier and examples:
        for partition, before in sorted(earlier.items()):
            if partition not in examples:
                sentence = "No node holds partition %d any more; the run goes on without it"
                log(WARNING, sentence, partition)
            elif (count := examples[partition]) != before:
                sentence = "Partition %d: %d examples from now on, %d before"
                log(WARNING, sentence, partition, count, before)
        return registry._replace(examples={**earlier, **examples})
    if len(examples) != clients:
        queried = len(registry.partitions) + len(registry.refused)
        raise SettingsError(
            f"{len(examples)} partitions answered, clients is {clients}; "
            + _describe_missing(queried, silent, reasons)
        )
    return registry


def reregister_nodes(
    grid: Grid, registry: NodeRegistry, requirements: ConfigRecord, timeout: float
) -> NodeRegistry:
    """Update who holds what before a later round.

    Nodes that came later take partitions that nobody connected has. A node that returns under the
    number that it had was never forgotten, and has its partition again, whoever took it meanwhile.
    Nobody is asked unless a partition is without a node and an unknown node is there. That one has
    to hold as many examples as before, and is asked once: again only where its partition was
    another's then.
    """
    connected = set(grid.get_node_ids())
    registry = _restore_first_nodes(registry, connected)
    occupied = {k for node, k in registry.partitions.items() if node in connected}
    orphans = registry.examples.keys() - occupied
    unknown = sorted(connected - registry.partitions.keys())
    candidates = [n for n in unknown if registry.refused.get(n) in (None, *orphans)]
    if not (orphans and candidates):
        return registry
    expected = registry.examples
    answers, _, _ = _query_nodes(
        grid, candidates, expected, occupied, requirements=requirements, timeout=timeout
    )
    for partition in sorted(answers.examples):
        log(INFO, "A node holds partition %d again", partition)
    return _merge_registries(registry, answers)


def _describe_missing(nodes: int, silent: int, reasons: Sequence[str]) -> str:
    """Describe what became of the nodes that were asked, and what to do about missing ones."""
    sentence = f"{nodes} nodes were asked"
    if silent:
        sentence += (
            f"; {silent} gave no answer within {ANSWER_SECONDS:.0f} s, look into their logs for "
            "the reason"
        )
    if reasons:
        shown = [*reasons[:5], *(["..."] if len(reasons) > 5 else [])]
        sentence += f"; {len(reasons)} were refused: {'; '.join(shown)}"
    return f"{sentence}; start a node for each partition that is missing, or set clients"


def _restore_first_nodes(registry: NodeRegistry, connected: Container[int]) -> NodeRegistry:
    """Give nodes that are connected again the partitions that they held first."""
    first = {node: k for k, node in registry.first_nodes.items() if node in connected}
    restored = {node: k for node, k in first.items() if registry.partitions.get(node) != k}
    for partition in sorted(restored.values()):
        log(INFO, "The node that held partition %d at first holds it again", partition)
    unchanged = {n: k for n, k in registry.partitions.items() if k not in restored.values()}
    return registry._replace(partitions=unchanged | restored)


def _merge_registries(registry: NodeRegistry, answers: NodeRegistry) -> NodeRegistry:
    """Add answers to a registry: who answered has a partition in the place of who had it."""
    unchanged = {n: k for n, k in registry.partitions.items() if k not in answers.examples}
    return NodeRegistry(
        unchanged | answers.partitions,
        registry.examples | answers.examples,
        registry.has_node_data or answers.has_node_data,
        {**answers.nodes, **registry.first_nodes},
        {**registry.refused, **answers.refused},
    )


def _query_nodes(
    grid: Grid,
    nodes: Sequence[int],
    expected: Mapping[int, int | None],
    occupied: Container[int],
    *,
    requirements: ConfigRecord,
    timeout: float,
) -> tuple[NodeRegistry, list[str], int]:
    """Query nodes for their partitions; those of `expected` not `occupied` are registered.

    `expected` are all partitions, and how many examples each must have, where that is known. Each
    thousand of nodes has `timeout` seconds. Returned are also why nodes were refused, and the
    number of those that did not answer in time.
    """
    registry = NodeRegistry({}, {})
    reasons: list[str] = []
    refused = dict.fromkeys(nodes, _NO_PARTITION)
    answered = 0
    for sender, reply in _ask(grid, nodes, requirements, timeout):
        answered += 1
        if is_node_lost(reply):  # and not refused: it is asked again once it is back
            refused.pop(sender, None)
        node, claim = reply.metadata.src_node_id, read_claim(reply)
        if isinstance(claim, str):
            reasons.append(to_printable(claim))
        elif node not in refused:
            reasons.append(f"node {node} was not asked, or answered before")
        elif reason := _find_claim_fault(claim, expected):
            reasons.append(reason)
        elif claim.partition in occupied or claim.partition in registry.examples:
            reasons.append(f"partition {claim.partition} is another's")
            refused[node] = claim.partition
        else:
            del refused[node]
            registry.partitions[node] = claim.partition
            registry.examples[claim.partition] = claim.examples
            registry = registry._replace(
                has_node_data=registry.has_node_data or claim.has_node_data
            )
    for reason in reasons:
        log(WARNING, "A node cannot take part: %s", reason)
    return registry._replace(refused=refused), reasons, len(nodes) - answered


def _ask(
    grid: Grid, nodes: Sequence[int], requirements: ConfigRecord, timeout: float
) -> Iterator[tuple[int, Message]]:
    """Ask nodes what they hold, so many at once; yield each answer after the node it is of."""
    content = RecordDict({record_names.CONFIG: requirements})
    kind = f"query.{record_names.COUNT_QUERY}"
    begin = time.monotonic()
    for first in range(0, len(nodes), AT_ONCE):
        part = nodes[first : first + AT_ONCE]
        queries = [Message(content, dst_node_id=node, message_type=kind) for node in part]
        replies = grid.send_and_receive(queries, timeout=timeout)
        addressees = [(query.metadata, query.metadata.dst_node_id) for query in queries]
        names = dict(zip(part, part, strict=True))
        yield from ((find_sender(reply, names, addressees), reply) for reply in replies)
        if len(nodes) > AT_ONCE:
            show_progress(
                f"{first + len(part)} of {len(nodes)} nodes were asked what they hold, "
                f"{time.monotonic() - begin:.0f} s"
            )


def _find_claim_fault(claim: Claim, expected: Mapping[int, int | None]) -> str | None:
    """Describe why nobody can hold what a node claims to hold, or why it cannot train here."""
    partition, count = claim.partition, claim.examples
    sentence = f"partition {partition}, {count} examples"
    if not (1 <= count <= MAX_EXAMPLES and partition in expected):
        return sentence
    if (before := expected[partition]) not in (None, count):
        return (
            f"{sentence}, {before} before; if that is meant, stop the run and go on with "
            "resume=true recount=true"
        )
    if claim.code not in (None, digest_code()):
        return (
            f"partition {partition}: its fedcel has other code than the server's (digest "
            f"{claim.code}, {digest_code()} here); end the node, delete the folder `apps` in its "
            "FLWR_HOME, install the server's version of fedcel there and start it again"
        )
    return None
