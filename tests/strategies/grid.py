"""A strategy without nodes: prepared answers to the question for images, prepared replies."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, Error, Message, MetricRecord, RecordDict

from fedcel.federation import begin_round, init_server_state
from fedcel.run_parts import build_server_parts
from fedcel.settings import parse_settings
from strategies import PosteriorStrategy
from strategies.node_registry import NodeRegistry

SHAPES = [(2, 3), (3,)]
EXAMPLES = {0: 10, 1: 30, 2: 60}


class FakeGrid:
    """One node for each prepared answer, 100 the first; `away` are not connected.

    A node whose answer is None never answers.
    """

    def __init__(self, answers: Sequence[dict[str, Any] | None], away: Sequence[int] = ()) -> None:
        self.answers = {100 + k: answer for k, answer in enumerate(answers)}
        self.away = set(away)
        self.asked: list[int] = []
        self.timeout = 0.0

    def get_node_ids(self) -> list[int]:
        return [node for node in self.answers if node not in self.away]

    def send_and_receive(self, messages: list[Message], timeout: float) -> list[Message]:
        """Return the answer of every node that is asked and answers."""
        self.timeout, replies = timeout, []
        for message in messages:
            node = message.metadata.dst_node_id
            self.asked.append(node)
            if (answer := self.answers[node]) is None:
                continue
            content = RecordDict({"metrics": MetricRecord(answer)})
            replies.append(Message(content, reply_to=message))
        return replies


def strategy(
    kind: type[PosteriorStrategy] = PosteriorStrategy,
    examples: dict[int, int] = EXAMPLES,
    **raw: object,
) -> PosteriorStrategy:
    """Return a strategy that has met its nodes: node 100 + k holds partition k."""
    settings = parse_settings({"clients": len(examples), "strategy.momentum": 0.0, **raw})
    instance = kind(settings, init_server_state(torch.zeros(9)), SHAPES, 6)
    partitions = {100 + k: k for k in examples}
    instance.registry = NodeRegistry(partitions, dict(examples))
    begin(instance)
    return instance


def begin(instance: PosteriorStrategy, weights: dict[int, float] | None = None) -> None:
    """Let the round begin that follows the strategy's state, with these weights if given."""
    request = begin_round(
        build_server_parts(instance.settings), instance.state, instance.registry.examples
    )
    instance.request = request if weights is None else request._replace(weights=weights)


def reply(client: int, value: float = 1.0, **change: object) -> Message:
    """Return a client's reply, sound unless `change` says otherwise."""
    request = Message(RecordDict(), dst_node_id=100 + client, message_type="train")
    arrays = change.get("arrays", [np.full(s, value, np.float32) for s in SHAPES])
    content = RecordDict(
        {
            str(change.get("key", "delta")): ArrayRecord(arrays),
            "metrics": MetricRecord(
                {
                    "num-examples": change.get("examples", EXAMPLES.get(client, 5)),
                    "partition": client,
                    "loss": float(client),
                }
            ),
        }
    )
    return Message(content, reply_to=request)


def failed(client: int) -> Message:
    request = Message(RecordDict(), dst_node_id=100 + client, message_type="train")
    return Message(Error(2, "ValueError: no images"), reply_to=request)
