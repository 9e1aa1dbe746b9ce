"""Incarnations of nodes, which tell two machines with one key apart."""

from logging import WARNING
from typing import NamedTuple

from flwr.app import Message, MetricRecord

from fedcel.federation import record_names
from strategies.flower_log import log


class SharedKey(NamedTuple):
    """Two nodes with one key, by the names that each has in its log."""

    current: str
    replaced: str

    def describe(self) -> str:
        """Describe it, with the remedy."""
        return (
            f"two nodes have its key: {self.current} is kept, {self.replaced} left out; end the "
            f"one whose log says 'this node is {self.replaced}'"
        )


class NodeIncarnations:
    """Incarnations that each node has told with its replies.

    A node draws a number when it first trains in a run, and has it in memory alone: started again,
    it draws another. So a number that is back after another one is a second machine's.
    """

    def __init__(self) -> None:
        self._names: dict[int, list[str]] = {}

    def find_shared_key(self, reply: Message) -> SharedKey | None:
        """Note the incarnation in a valid reply.

        Args:
            reply: A node's; a ClientApp of another's making may tell none.

        Returns:
            None, or the pair where the reply is of a node that another one has replaced.
        """
        node = reply.metadata.src_node_id
        metrics = reply.content.metric_records.get(record_names.METRICS) or MetricRecord()
        number = metrics.get(record_names.INCARNATION)
        if not isinstance(number, int):
            return None
        name, names = record_names.name_incarnation(number), self._names.setdefault(node, [])
        if name in names[:-1]:
            return SharedKey(current=names[-1], replaced=name)
        if name not in names:
            if names:
                log(
                    WARNING,
                    "Node %d is %s from now on, started again; it was %s",
                    node,
                    name,
                    names[-1],
                )
            names.append(name)
        return None
