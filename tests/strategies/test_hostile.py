"""Ten thousand hostile replies, and hostile clients whose replies look sound."""

import io
import math
import re
from collections.abc import Callable

import numpy as np
import pytest
import torch
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Error,
    Message,
    MetricRecord,
    RecordDict,
)

from clients import make_client_app
from fedcel.federation import (
    init_server_state,
    record_names,
    server_round,
)
from fedcel.nets.flat_net import to_arrays
from fedcel.run_parts import build_workspace_net
from fedcel.settings import parse_settings
from strategies import PosteriorStrategy
from strategies.node_registry import NodeRegistry
from tests.strategies.grid import begin

SHAPES = [(2, 3), (3,)]
NODES, DRAWN, HONEST = 40, 30, 3  # partitions; the first 30 train, the first 3 of them honestly
HELD, LIMIT = 10, 5.0
Arrays = list[np.ndarray]
Made = tuple[Message, str | None]


def strategy(rule: str = "mean", clients: int = NODES, **raw: object) -> PosteriorStrategy:
    """Return a strategy that has met its nodes: node 100 + k holds partition k."""
    settings = parse_settings(
        {
            "clients": clients,
            "rounds": 1000,
            "temperature": 0.0,
            "strategy.momentum": 0.0,
            "strategy.aggregation": rule,
            **raw,
        }
    )
    instance = PosteriorStrategy(settings, init_server_state(torch.zeros(9)), SHAPES, 6)
    partitions = {100 + k: k for k in range(clients)}
    instance.registry = NodeRegistry(partitions, dict.fromkeys(range(clients), HELD))
    begin(instance)
    return instance


def small(chance: np.random.Generator) -> Arrays:
    """Return a sound delta of values below .1."""
    return [chance.uniform(-0.1, 0.1, s).astype(np.float32) for s in SHAPES]


def sent(
    client: int, delta: ArrayRecord | Arrays, number: int, **metrics: int | float | list[float]
) -> Message:
    """Return a client's reply to round `number`."""
    request = Message(RecordDict(), dst_node_id=100 + client, message_type="train")
    numbers = {
        record_names.EXAMPLES: HELD,
        record_names.ROUND: number,
        record_names.PARTITION: client,
        "loss": 1.0,
    } | metrics
    record = delta if isinstance(delta, ArrayRecord) else ArrayRecord(delta)
    content = RecordDict({record_names.DELTA: record, record_names.METRICS: MetricRecord(numbers)})
    return Message(content, reply_to=request)


def of_bytes(data: bytes, stype: str = "numpy.ndarray") -> ArrayRecord:
    """Return a record that says it is a model and holds these bytes."""
    return ArrayRecord({str(k): Array("float32", s, stype, data) for k, s in enumerate(SHAPES)})


def values(chance: np.random.Generator, client: int, number: int) -> Made:
    arrays = small(chance)
    arrays[chance.integers(2)].flat[chance.integers(3)] = chance.choice([np.nan, np.inf, -np.inf])
    return sent(client, arrays, number), "NaN or infinity"


def shapes(chance: np.random.Generator, client: int, number: int) -> Made:
    """None, too many, flat, transposed or empty arrays."""
    matrix = np.zeros((2, 3), np.float32)
    options = [
        [],
        [matrix] * 50,
        [matrix.ravel(), matrix[0]],
        [matrix.T, matrix[0]],
        [matrix, np.zeros(0, "f4")],
    ]
    return sent(client, options[chance.integers(len(options))], number), "shapes"


def dtypes(chance: np.random.Generator, client: int, number: int) -> Made:
    """Right shapes of a wrong type."""
    kind = chance.choice(["f8", "f2", "i1", "u8", "c8", ">f4", "?"])
    return sent(client, [np.zeros(s, kind) for s in SHAPES], number), "dtypes"


def norms(chance: np.random.Generator, client: int, number: int) -> Made:
    """From just above the limit to the largest float32."""
    size = 10 ** chance.uniform(1, 38.4)
    return sent(client, [np.full(s, size, np.float32) for s in SHAPES], number), "its norm is"


def lies(chance: np.random.Generator, client: int, number: int) -> Made:
    """Any number of examples but that told before round 1."""
    options = [0, -HELD, HELD + 1, 2**63, 1e300, math.nan, math.inf, [10.0], 10.5]
    claim = options[chance.integers(len(options))]
    return sent(client, small(chance), number, **{record_names.EXAMPLES: claim}), "it claims"


def records(chance: np.random.Generator, client: int, number: int) -> Made:
    """Records missing, or of another kind under the right name."""
    message = sent(client, small(chance), number)
    swap = [None, ConfigRecord({"a": b"x"}), MetricRecord({"a": 1}), ArrayRecord()]
    name, kind = [
        (record_names.DELTA, swap[0]),
        (record_names.METRICS, swap[0]),
        (record_names.DELTA, swap[1]),
        (record_names.DELTA, swap[2]),
        (record_names.METRICS, swap[1]),
        (record_names.METRICS, swap[3]),
    ][chance.integers(6)]
    del message.content[name]
    if kind is not None:
        message.content[name] = kind
    return message, "records"


def noise(chance: np.random.Generator, client: int, number: int) -> Made:
    """Random bytes, or a format that is not NumPy's."""
    data, kind = chance.bytes(int(chance.integers(200))), chance.choice(["numpy.ndarray", "torch"])
    return sent(client, of_bytes(data, kind), number), "cannot be read"


def damaged(chance: np.random.Generator, client: int, number: int) -> Made:
    """NumPy's own bytes cut short, or with a header that announces a petabyte."""
    stream = io.BytesIO()
    np.save(stream, np.zeros(6, np.float32))
    archive = stream.getvalue()
    large = archive.replace(
        b"'shape': (6,), }" + b" " * 15, b"'shape': (999999999999999,), }" + b" "
    )
    assert len(large) == len(archive)
    if chance.random() < 0.2:
        return sent(client, of_bytes(large), number), "shapes"
    cut = archive[: chance.integers(len(archive) - 1)]
    return sent(client, of_bytes(cut), number), "cannot be read|shapes"


def archive(chance: np.random.Generator, client: int, number: int) -> Made:
    """A zip of arrays, which NumPy reads without complaint."""
    stream = io.BytesIO()
    np.savez(stream, a=small(chance)[0])
    return sent(client, of_bytes(stream.getvalue()), number), "cannot be read"


def replays(chance: np.random.Generator, client: int, number: int) -> Made:
    """A sound reply to another round."""
    replayed = number + int(chance.choice([-number, -1, 1, 1000]))
    return sent(
        client, small(chance), replayed
    ), f"it answers round {replayed}, this is round {number}"


def failures(chance: np.random.Generator, client: int, number: int) -> Made:
    """An error with any text."""
    request = Message(RecordDict(), dst_node_id=100 + client, message_type="train")
    reason = chance.bytes(50).decode("latin-1")
    return Message(Error(int(chance.integers(5)), reason), reply_to=request), "the client failed"


def strangers(chance: np.random.Generator, client: int, number: int) -> Made:
    """A node never met, or one that was not drawn."""
    return sent(int(chance.integers(DRAWN, 9 * NODES)), small(chance), number), "was not asked"


def doubles(chance: np.random.Generator, client: int, number: int) -> Made:
    """Under an honest client's name, after its own reply."""
    return sent(int(chance.integers(HONEST)), small(chance), number), None


KINDS: list[Callable[[np.random.Generator, int, int], Made]] = [
    *(values, shapes, dtypes, norms, lies, records, noise),
    *(damaged, archive, replays, failures, strangers, doubles),
]


@pytest.mark.parametrize(("rule", "count"), [("mean", 4000), ("geometric-median", 1000)])
def test_hostile_replies_change_nothing_but_the_list_of_the_rejected(rule: str, count: int) -> None:
    """Of 40 nodes 3 are honest: the model is what they alone would make, to the bit.

    Every other reply is on the list, under its client, with the reason that it was made for; a
    second reply is ignored.
    """
    chance, per_kind = np.random.default_rng(0), 250
    attacked, alone = (strategy(rule, **{"strategy.max-norm": LIMIT}) for _ in range(2))
    for number in range(1, count // per_kind + 1):
        honest = [sent(k, small(chance), number, clipped=0.5) for k in range(HONEST)]
        hostile = []
        for _ in range(per_kind):
            kind = KINDS[chance.integers(len(KINDS))]
            hostile.append(kind(chance, int(chance.integers(HONEST, DRAWN)), number))
        for instance, replies in ((attacked, honest + [m for m, _ in hostile]), (alone, honest)):
            instance.rejected = []
            begin(instance, dict.fromkeys(range(DRAWN), 1 / DRAWN))
            instance.aggregate_train(number, replies)
        rejected = [r for r in attacked.rejected if r.reason != "no reply"]
        expected = [(message, reason) for message, reason in hostile if reason]
        for (message, reason), rejection in zip(expected, rejected, strict=True):
            partition = message.metadata.src_node_id - 100
            assert rejection.client == (partition if partition < NODES else -1)
            assert re.search(reason, rejection.reason), (reason, rejection)
        assert attacked.report.clients == list(range(HONEST))
        assert attacked.report.metrics == alone.report.metrics
    assert torch.equal(attacked.state.model, alone.state.model)
    assert attacked.state.model.isfinite().all() and attacked.state.model.any()


def test_metrics_that_are_lies_reach_neither_the_model_nor_the_log() -> None:
    """A sound delta with strange numbers counts; its numbers do not, and that is said."""
    s, chance = strategy(clients=3), np.random.default_rng(0)
    begin(s, dict.fromkeys(range(3), 1 / 3))
    odd = sent(2, small(chance), 1, loss=math.nan, round=7.0, mine=1e308, many=[1.0, 2.0])
    s.aggregate_train(1, [sent(0, small(chance), 1), sent(1, small(chance), 1), odd])
    assert s.rejected == []
    assert s.report.metrics.keys() == {"loss", server_round.CLIENT_DRIFT}
    assert s.report.metrics["loss"] == 1.0
    assert [r.client for r in s.report.unused_metrics] == [2]


@pytest.mark.parametrize("rule", ["mean", "geometric-median"])
def test_sound_looking_deltas_of_three_in_ten_move_the_mean_alone(rule: str) -> None:
    """1e6 in each value, no real limit on the norm: honest values are below .1, norms below .3."""
    chance = np.random.default_rng(0)
    s = strategy(rule, clients=10, **{"strategy.max-norm": 1e9})
    begin(s, dict.fromkeys(range(10), 0.1))
    large = [np.full(shape, 1e6, np.float32) for shape in SHAPES]
    s.aggregate_train(1, [sent(k, small(chance) if k < 7 else large, 1) for k in range(10)])
    assert s.rejected == []
    assert (s.state.model.abs().max() > 1e5) == (rule == "mean")
    assert rule == "mean" or s.state.model.norm() < 0.3


def test_a_real_client_says_which_round_it_answers() -> None:
    """The number that it was asked with, so that its reply is of no use later."""
    settings = parse_settings({"clients": 4, "local.steps": 1})
    flat = build_workspace_net(settings)
    config = ConfigRecord(
        {record_names.ROUND: 5, record_names.WEIGHT: 0.25, record_names.TOTAL: 997}
    )
    arrays = ArrayRecord(to_arrays(flat.vector, flat.shapes))
    content = RecordDict({record_names.ARRAYS: arrays, record_names.CONFIG: config})
    message = Message(content, dst_node_id=101, message_type="train")
    at = Context(1, 101, {"partition-id": 1}, RecordDict(), {})
    reply = make_client_app(settings)(message, at)
    assert reply.content[record_names.METRICS][record_names.ROUND] == 5
