"""Hostile gradients as answers to questions."""

import io
import re

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from fedcel.federation import init_server_state, record_names
from fedcel.settings import parse_settings
from strategies import PosteriorStrategy
from strategies.node_registry import NodeRegistry

SHAPES = [(2, 3), (3,)]
NODES, HONEST, HELD = 30, 3, 10
BURNT = 50  # rounds of burn-in, after which the chain is sampled and gradients are asked for
Arrays = list[np.ndarray]
Made = tuple[ArrayRecord | None, str]
Chance = np.random.Generator


def strategy() -> PosteriorStrategy:
    settings = parse_settings(
        {
            "clients": NODES,
            "rounds": 100,
            "chain.scope": "full",
            "chain.burn-in": 0.5,
            "strategy.momentum": 0.0,
            "strategy.max-norm": 5.0,
            "local.control": "fresh",
        }
    )
    state = init_server_state(torch.zeros(9))._replace(round=BURNT)
    instance = PosteriorStrategy(settings, state, SHAPES, 6)
    partitions = {100 + k: k for k in range(NODES)}
    instance.registry = NodeRegistry(partitions, dict.fromkeys(range(NODES), HELD))
    return instance


def gradient(chance: Chance) -> Arrays:
    return [chance.uniform(-0.1, 0.1, 9).astype(np.float32)]


def broken(chance: Chance, arrays: Arrays) -> Made:
    """Return bytes that are no arrays, arrays that do not fit, or none at all."""
    stream = io.BytesIO()
    np.savez(stream, a=arrays[0])
    data = [chance.bytes(int(chance.integers(200))), stream.getvalue()][chance.integers(2)]
    part = Array("float32", arrays[0].shape, "numpy.ndarray", data)
    options: list[Made] = [
        (None, "must be"),
        (ArrayRecord({str(k): part for k in range(len(arrays))}), "cannot be read"),
        (ArrayRecord([array[..., None] for array in arrays]), "shapes"),
        (ArrayRecord([*arrays, arrays[0]]), "shapes"),
        (ArrayRecord([array.astype(">f8") for array in arrays]), "dtypes"),
    ]
    return options[chance.integers(len(options))]


def bad_gradient(chance: Chance) -> Made:
    """Return a gradient that would throw everyone off, and the reason."""
    if chance.random() < 0.5:
        return broken(chance, gradient(chance))
    arrays = gradient(chance)
    if chance.random() < 0.5:
        arrays[0][chance.integers(9)] = chance.choice([np.nan, np.inf, -np.inf])
        return ArrayRecord(arrays), "NaN or infinity"
    arrays[0][:] = 10 ** chance.uniform(4, 38)
    return ArrayRecord(arrays), "moves the model by"


class Answers:
    """Gives prepared records to whoever is asked for a gradient."""

    def __init__(self, records: dict[int, ArrayRecord | None]) -> None:
        self.records = records

    def get_node_ids(self) -> list[int]:
        return [*self.records]

    def send_and_receive(self, messages: list[Message], timeout: float) -> list[Message]:
        """Return an answer to every message; one of a node never met besides."""
        replies = []
        for message in messages:
            record = self.records[message.metadata.dst_node_id]
            content = RecordDict({} if record is None else {record_names.GRADIENT: record})
            replies.append(Message(content, reply_to=message))
        stranger = Message(RecordDict(), dst_node_id=999, message_type="query.gradient")
        content = RecordDict({record_names.GRADIENT: ArrayRecord([np.ones(9, np.float32)])})
        return [*replies, Message(content, reply_to=stranger)]


def test_hostile_answers_to_the_question_for_gradients_do_not_reach_the_mean() -> None:
    """1 080 of them: the honest three are asked to train, with the mean of their gradients."""
    chance, s = np.random.default_rng(1), strategy()
    model = ArrayRecord([np.zeros(shape, np.float32) for shape in SHAPES])
    for _ in range(40):
        good = {100 + k: ArrayRecord(gradient(chance)) for k in range(HONEST)}
        bad_answers = {100 + k: bad_gradient(chance) for k in range(HONEST, NODES)}
        grid = Answers({**good, **{node: record for node, (record, _) in bad_answers.items()}})
        messages = list(s.configure_train(1, model, ConfigRecord(), grid))  # type: ignore[arg-type]
        assert [message.metadata.dst_node_id for message in messages] == [*good]
        reasons = {100 + int(r.client): r.reason for r in s.rejected}
        assert "was not asked" in reasons.pop(99)  # client -1: nobody knows it
        assert reasons.keys() == bad_answers.keys()
        assert all(re.search(bad_answers[node][1], reason) for node, reason in reasons.items())
        mean = np.mean([g.to_numpy_ndarrays()[0] for g in good.values()], 0)
        assert s.request is not None and s.request.gradient is not None
        np.testing.assert_allclose(s.request.gradient.numpy(), mean, atol=1e-6)
