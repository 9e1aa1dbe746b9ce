"""Nodes that answer the question for their images with prepared numbers."""

from collections.abc import Sequence
from typing import Any

from flwr.app import Message, MetricRecord, RecordDict


class FakeGrid:
    """One node for each prepared answer, 100 the first; `away` are not connected."""

    def __init__(self, answers: Sequence[dict[str, Any]], away: Sequence[int] = ()) -> None:
        self.answers = {100 + k: answer for k, answer in enumerate(answers)}
        self.away = set(away)
        self.asked: list[int] = []

    def get_node_ids(self) -> list[int]:
        """Return the connected nodes."""
        return [node for node in self.answers if node not in self.away]

    def send_and_receive(self, messages: list[Message], timeout: float) -> list[Message]:
        """Return the answer of every node that is asked."""
        found = []
        for message in messages:
            node = message.metadata.dst_node_id
            self.asked.append(node)
            content = RecordDict({"metrics": MetricRecord(self.answers[node])})
            found.append(Message(content, reply_to=message))
        return found
