"""The saboteur's list: one of four clients does its worst, and the run goes on as without it.

Whole runs of the ServerApp over real ClientApps, in memory, another sabotage in each round.
Whatever the saboteur does is said in the round's line of events.jsonl or in the log, and the model
is, to the bit, that of the others alone, or that of all four where only numbers were false.
"""

import io
import json
import math
import re
import zipfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Error,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.common.constant import SUPERLINK_NODE_ID

from clients import make_client_app
from fedcel.federation import record_names
from fedcel.files import read_tensors
from fedcel.runs import open_run
from fedcel.settings import Settings, parse_settings
from sims.engines.simulated_grid import InMemoryGrid
from strategies.server_app import train_over_grid

CLIENTS, SABOTEUR = 4, 3  # partitions; nodes beyond them are the surplus
FIRST_NODE = 2  # that of partition 0
RAW: dict[str, Any] = {
    "clients": CLIENTS,
    "local.steps": 1,
    "temperature": 0.0,
    "chain.burn-in": 1.0,
    "cel.kind": "gated",
    "cel.warm-up": 0,
    "cel.ramp": 0.1,
    "cel.penalty": "log",
    "cel.target": "spread",
    "cel.goal": 1.0,
}
Change = Callable[[Message], Message | None]
Content = Callable[[RecordDict], None]


def replace(change: Content) -> Change:
    def apply(reply: Message) -> Message:
        change(reply.content)
        return reply

    return apply


def arrays_of(content: RecordDict) -> list[np.ndarray]:
    return [array.copy() for array in content.array_records["delta"].to_numpy_ndarrays()]


def delta(change: Callable[[list[np.ndarray]], list[Any]]) -> Change:
    def apply(content: RecordDict) -> None:
        content["delta"] = ArrayRecord(change(arrays_of(content)))

    return replace(apply)


def value(number: float) -> Change:
    def apply(arrays: list[np.ndarray]) -> list[np.ndarray]:
        arrays[0].flat[5] = number
        return arrays

    return delta(apply)


def encoded(change: Callable[[bytes], bytes], stype: str = "numpy.ndarray") -> Change:
    def apply(content: RecordDict) -> None:
        content["delta"] = ArrayRecord(
            {
                name: Array(array.dtype, array.shape, stype, change(array.data))
                for name, array in content.array_records["delta"].items()
            }
        )

    return replace(apply)


def announce(header: bytes) -> Change:
    """Return a change of what the arrays' bytes say of themselves, padded to the right length."""
    body = header.ljust(117) + b"\n"
    return encoded(lambda data: b"\x93NUMPY\x01\x00v\x00" + body + data[128:])


def put(name: str, record: Callable[[], Any]) -> Change:
    return replace(lambda content: content.__setitem__(name, record()))


def drop(*names: str) -> Content:
    """Return a change that takes records out of a reply."""

    def apply(content: RecordDict) -> None:
        for name in names:
            del content[name]

    return apply


def both(first: Content, second: Content) -> Change:
    """Return two changes, one after the other."""

    def apply(content: RecordDict) -> None:
        first(content)
        second(content)

    return replace(apply)


def tell(**numbers: Any) -> Change:
    """Return a change of metrics; `_` in a name stands for a hyphen."""
    return tell_all({name.replace("_", "-"): number for name, number in numbers.items()})


def tell_all(numbers: dict[str, Any]) -> Change:
    return replace(lambda content: content["metrics"].update(numbers))


def forget(name: str) -> Change:
    """Return a change that leaves a metric out."""
    return replace(lambda content: content["metrics"].pop(name))


def shift(name: str, by: float) -> Change:
    return replace(lambda content: content["metrics"].update({name: content["metrics"][name] + by}))


def as_float(name: str) -> Change:
    """Return a change of a claim to the same number of another type."""
    return replace(
        lambda content: content["metrics"].update({name: float(content["metrics"][name])})
    )


def fail(reason: str) -> Change:
    """Return an error in the place of a reply, as Flower makes one of what a ClientApp raises."""
    return lambda reply: Message(Error(2, reason), reply_to=Message(RecordDict(), 5, "train"))


def lose(reply: Message) -> None:
    """Give no reply: the process hangs until the timeout, or was killed."""


def leave(reply: Message) -> Message:
    """Answer as the SuperLink does for a node that is gone."""
    error = Message(Error(5, "Node Unavailable"), reply_to=Message(RecordDict(), 5, "train"))
    error.metadata.__dict__["_src_node_id"] = SUPERLINK_NODE_ID
    return error


def zipped(data: bytes) -> bytes:
    """Return an archive of a gigabyte of zeros, a megabyte long."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.npy", data + bytes(2**24))
    return stream.getvalue()


def pickled(data: bytes) -> bytes:
    stream = io.BytesIO()
    np.save(stream, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    return stream.getvalue()


MALFORMED: dict[str, tuple[Change, str]] = {
    "nan": (value(math.nan), "NaN or infinity"),
    "inf": (value(math.inf), "NaN or infinity"),
    "minus-inf": (value(-math.inf), "NaN or infinity"),
    "largest-float": (value(3e38), "its norm is"),
    "long": (delta(lambda a: [1e4 * np.ones_like(x) for x in a]), "its norm is"),
    "too-long-in-one-value": (value(5e4), "its norm is 5e"),
    "float64": (delta(lambda a: [x.astype("f8") for x in a]), "dtypes"),
    "float16": (delta(lambda a: [x.astype("f2") for x in a]), "dtypes"),
    "int8": (delta(lambda a: [x.astype("i1") for x in a]), "dtypes"),
    "int32": (delta(lambda a: [x.astype("i4") for x in a]), "dtypes"),
    "complex": (delta(lambda a: [x.astype("c8") for x in a]), "dtypes"),
    "big-endian": (delta(lambda a: [x.astype(">f4") for x in a]), "dtypes"),
    "bool": (delta(lambda a: [x.astype("?") for x in a]), "dtypes"),
    "text": (delta(lambda a: [x.astype("U1") for x in a]), "dtypes"),
    "transposed": (delta(lambda a: [x.T for x in a]), "shapes"),
    "flat": (delta(lambda a: [x.ravel() for x in a]), "shapes"),
    "one-axis-more": (delta(lambda a: [x[None] for x in a]), "shapes"),
    "reversed": (delta(lambda a: a[::-1]), "shapes"),
    "empty-arrays": (delta(lambda a: [np.zeros(0, "f4") for x in a]), "shapes"),
    "scalars": (delta(lambda a: [np.ones((), "f4") for x in a]), "shapes"),
    "one-array-less": (delta(lambda a: a[:-1]), "arrays, must be"),
    "one-array-more": (delta(lambda a: [*a, a[0]]), "arrays, must be"),
    "no-arrays": (delta(lambda a: []), "0 arrays, must be"),
    "a-thousand-arrays": (delta(lambda a: [a[-1]] * 1000), "1000 arrays, must be"),
    "no-bytes": (encoded(lambda data: b""), "cannot be read"),
    "random-bytes": (encoded(lambda data: bytes(range(256))), "cannot be read"),
    "cut-bytes": (encoded(lambda data: data[:-1]), r"has \d+ bytes, must have"),
    "more-bytes": (encoded(lambda data: data + bytes(10**6)), r"has \d+ bytes, must have"),
    "cut-header": (encoded(lambda data: data[:20]), "cannot be read"),
    "other-version": (encoded(lambda data: b"\x93NUMPY\x03\x00" + data[8:]), "NumPy's format"),
    "petabyte": (
        announce(b"{'descr': '<f4', 'fortran_order': False, 'shape': (999999999999999,), }"),
        "shapes",
    ),
    "negative-shape": (
        announce(b"{'descr': '<f4', 'fortran_order': False, 'shape': (-1, 128), }"),
        "shapes",
    ),
    "nested-header": (announce(b"(" * 100), "cannot be read"),
    "code-in-header": (announce(b"__import__('os').abort()"), "cannot be read"),
    "pickle": (encoded(pickled), "cannot be read|shapes"),
    "archive": (encoded(zipped), "cannot be read"),
    "torch": (encoded(lambda data: data, "torch.Tensor"), "must be 'numpy.ndarray'"),
    "surrogate-type": (encoded(lambda data: data, "\udc80" * 5000), "must be 'numpy.ndarray'"),
    "delta-is-numbers": (put("delta", lambda: MetricRecord({"a": 1})), "other kinds"),
    "delta-is-settings": (put("delta", lambda: ConfigRecord({"a": b"x" * 10**6})), "other kinds"),
    "metrics-are-arrays": (put("metrics", ArrayRecord), "other kinds"),
    "no-delta": (replace(drop("delta")), r"records \['metrics'\], must be"),
    "no-metrics": (replace(drop("metrics")), r"records \['delta'\], must be"),
    "nothing": (replace(drop("delta", "metrics")), r"records \[\], must be"),
    "another-name": (
        both(lambda c: c.__setitem__("delta ", c["delta"]), drop("delta")),
        r"records \['delta ', 'metrics'\], must be",
    ),
}

ONES = [np.ones(9, "f4")]
EXTRA: dict[str, tuple[Change, str]] = {
    "megabytes": (put("x", lambda: ArrayRecord([np.zeros(2**21, "f4")])), "records"),
    "bomb": (
        put("x", lambda: ArrayRecord({"0": Array("f4", (2**40,), "numpy.ndarray", b"x" * 99)})),
        "records",
    ),
    "numbers": (put("more", lambda: MetricRecord({"loss": 1e30})), "records"),
    "settings": (put("config", lambda: ConfigRecord({"cel-threshold": "x" * 10**7})), "records"),
    "long-name": (put("x" * 10**6, MetricRecord), "records"),
    "surrogates": (put("\udcff\n\x1b[2J", MetricRecord), "records"),
    "thousand-records": (
        replace(lambda c: c.update({f"r{k}": MetricRecord() for k in range(1000)})),
        "1002 records",
    ),
    "statistics": (put("statistics", lambda: ArrayRecord(ONES)), "records"),
    "gradient": (put("gradient", lambda: ArrayRecord(ONES)), "records"),
    "weights": (put("arrays", lambda: ArrayRecord(ONES)), "records"),
    "state": (put("cel", lambda: ArrayRecord(ONES)), "records"),
}

FALSE_CLAIMS: dict[str, tuple[Change, str]] = {
    "no-examples": (tell(num_examples=0), "it claims 0 examples"),
    "negative-examples": (tell(num_examples=-300), "it claims -300 examples"),
    "one-example-more": (shift(record_names.EXAMPLES, 1), "examples and held"),
    "huge-examples": (tell(num_examples=2**63 - 1), "it claims 9223372036854775807 examples"),
    "float-examples": (as_float(record_names.EXAMPLES), "examples and held"),
    "nan-examples": (tell(num_examples=math.nan), "it claims nan examples"),
    "inf-examples": (tell(num_examples=math.inf), "it claims inf examples"),
    "list-of-examples": (tell(num_examples=[1] * 10**5), "a list of 100000 numbers examples"),
    "examples-not-told": (forget(record_names.EXAMPLES), "it claims None examples"),
    "last-round": (shift(record_names.ROUND, -1), r"it answers round \d+, this is round \d+"),
    "next-round": (shift(record_names.ROUND, 1), r"it answers round \d+, this is round \d+"),
    "float-round": (as_float(record_names.ROUND), r"it answers round \d+\.0, this is round \d+"),
    "nan-round": (tell(server_round=math.nan), "it answers round nan"),
    "list-of-rounds": (tell(server_round=[1, 2]), "it answers round a list of 2 numbers"),
    "anothers-partition": (tell(partition=0), "it claims partition 0 and holds 3"),
    "negative-partition": (tell(partition=-1), "it claims partition -1 and holds 3"),
    "float-partition": (tell(partition=3.0), "it claims partition 3.0 and holds 3"),
    "huge-partition": (tell(partition=2**62), "it claims partition 4611686018427387904"),
}

TEXT = "\udcff\x00\x1b[2J\nRuntimeError: " + "x" * 10**7
FAULTS: dict[str, tuple[Change, str]] = {
    "raises": (fail("ValueError: no images"), "the client failed: ValueError: no images"),
    "hangs": (lose, "no reply"),
    "is-gone": (leave, "the client failed: Node Unavailable|no reply"),
    "says-nothing": (fail(""), "the client failed"),
    "says-megabytes": (fail(TEXT), "the client failed: .*RuntimeError: xxx"),
    "says-surrogates": (fail("\ud800" * 10), "the client failed"),
    "out-of-memory": (fail("<class 'MemoryError'>:<''>"), "the client failed: MemoryError$"),
    "raises-in-flower": (
        fail("<class 'own.Bad.<locals>.Error'>:<'no 'x''>"),
        "the client failed: Error: no 'x'$",
    ),
    "raises-in-a-simulation": (
        fail(
            "<class 'ray.exceptions.RayTaskError(ClientAppException)'>:<'\x1b[36mray::Client"
            "AppActor.run()\x1b[39m (pid=7)\n  File 'a.py', line 2\nflwr.ClientAppException: \n"
            "Exception ClientAppException occurred. Message: no images'>"
        ),
        "the client failed: no images$",
    ),
    "raises-ours": (
        fail("<class 'fedcel.errors.DataError'>:<'it holds no image'>"),
        "the client failed: it holds no image$",
    ),
    "recursion": (fail("maximum recursion depth exceeded\n" * 999), "maximum recursion depth"),
}

METRICS: dict[str, tuple[Change, str]] = {
    "huge-loss": (tell(loss=1e30), "'loss' is 1e"),
    "negative-loss": (tell(loss=-1.0), "'loss' is -1"),
    "nan-loss": (tell(loss=math.nan), "'loss' is nan"),
    "list-of-losses": (tell(loss=[1.0] * 10**5), "'loss' is nan, must be a finite number"),
    "integer-loss": (tell(loss=10**400), "'loss' is inf"),
    "loss-of-a-class": (tell_all({f"loss-{k}": 1e30 for k in range(10)}), "no 'loss-0' and 9"),
    "share-above-one": (tell(attention_share=1.5), "'attention-share' is 1.5"),
    "share-of-a-class": (tell_all({"attention-share-3": 1e30}), "'attention-share-3' is 1e"),
    "spread-of-no-class": (tell_all({"plain-spread-10": 1.0}), "no 'plain-spread-10'"),
    "impossible-spread": (tell(spread=65.0), r"'spread' is 65, must be in \[0, 64\]"),
    "mine": (tell(accuracy=1.0, nll=0.0, kept_share=0.0), "no 'accuracy' and 2 others"),
    "the-servers": (tell_all({"client-drift": 1.0, "heaviest-update": 1.0}), "'client-drift'"),
    "thousands": (tell_all({f"m{k}": 1.0 for k in range(20_000)}), r"reports 200\d\d metrics"),
    "long-name": (tell_all({"x" * 10**6: 1.0}), "name has 1000000 characters"),
    "surrogate-name": (tell_all({"\udcff\n": 1.0}), "most clients report no"),
}

ANSWERS: dict[str, tuple[Change, str]] = {
    "anothers": (tell(partition=0), "partition 0 is another's"),
    "negative": (tell(partition=-1), "partition -1, 300 examples"),
    "beyond": (tell(partition=4), "partition 4, 300 examples"),
    "huge": (tell(partition=2**62), "partition 4611686018427387904"),
    "float": (tell(partition=0.0), "partition 0.0, 300 examples"),
    "nan": (tell(partition=math.nan), "partition nan, 300 examples"),
    "list": (tell(partition=[0]), "partition a list of 1 numbers"),
    "not-told": (forget(record_names.PARTITION), "partition None, 300 examples"),
    "no-examples": (tell(num_examples=0), "partition 3, 0 examples"),
    "negative-examples": (tell(num_examples=-5), "partition 3, -5 examples"),
    "too-many-examples": (tell(num_examples=10**9), "partition 3, 1000000000 examples"),
    "float-examples": (tell(num_examples=300.0), "partition 3, 300.0 examples"),
    "own-images": (tell(own_images=7), "own-images is 7, must be 0 or 1"),
    "other-code": (tell(code=7), "partition 3: its fedcel has other code than the server's"),
    "list-of-code": (tell(code=[7, 7]), "code is a list of 2 numbers, must be one whole number"),
    "more-numbers": (tell(loss=1.0), "and nothing else"),
    "more-records": (put("x", MetricRecord), "records"),
    "arrays": (put("metrics", ArrayRecord), "of other kinds"),
    "raises": (fail(TEXT), "the client failed: .*RuntimeError"),
}


class SabotagedGrid(InMemoryGrid):
    """Nodes in memory; replies to messages of one kind are changed.

    Args:
        settings: The run's settings.
        kind: The messages.
        changes: By node, one change for each message of the kind.
        surplus: Nodes beyond those that hold partitions; their answers are made up.
    """

    def __init__(
        self,
        settings: Settings,
        kind: str = "",
        changes: Mapping[int, Iterable[Change]] | None = None,
        surplus: int = 0,
    ) -> None:
        super().__init__(make_client_app(settings), CLIENTS + surplus)
        self.kind = kind
        self.changes = {node: iter(rest) for node, rest in (changes or {}).items()}

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        replies = [self._answer(message) for message in messages]
        return [reply for reply in replies if reply is not None]

    def _answer(self, message: Message) -> Message | None:
        """Return a node's reply, changed if it is a saboteur's."""
        node = message.metadata.dst_node_id
        if node >= FIRST_NODE + CLIENTS:
            numbers = MetricRecord({"partition": 3, "num-examples": 300, "own-images": 0})
            reply = Message(RecordDict({"metrics": numbers}), reply_to=message)
        else:
            (reply,) = super().send_and_receive([message])
        if message.metadata.message_type != self.kind or node not in self.changes:
            return reply
        changed = next(self.changes[node])(reply)
        if changed is not None:  # under the saboteur's own address
            fields = changed.metadata.__dict__
            fields["_reply_to_message_id"] = reply.metadata.reply_to_message_id
            if fields["_src_node_id"] != SUPERLINK_NODE_ID:
                fields["_src_node_id"] = node
        return changed


def train(
    folder: Path,
    rounds: int,
    kind: str = "",
    changes: Mapping[int, Iterable[Change]] | None = None,
    *,
    surplus: int = 0,
) -> tuple[torch.Tensor, list[dict[str, Any]]]:
    """Train into a folder; return the model and the rounds, read as strict JSON in short lines."""
    settings = parse_settings(RAW | {"rounds": rounds})
    grid = SabotagedGrid(settings, kind, changes, surplus)
    with open_run(folder, settings):
        train_over_grid(grid, settings, folder, lambda event: None, measure=False)
    lines = (folder / "events.jsonl").read_text(encoding="ascii").splitlines()
    assert max(map(len, lines)) < 5000

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    events = [json.loads(line, parse_constant=refuse) for line in lines]
    assert [event["round"] for event in events] == [*range(1, rounds + 1)]
    return read_tensors(folder / "model.safetensors")[0]["model"], events


def list_messages(caplog: pytest.LogCaptureFixture, beginning: str) -> list[str]:
    messages = [record.getMessage().strip() for record in caplog.records]
    return [message for message in messages if message.startswith(beginning)]


def test_a_bad_reply_costs_the_saboteur_its_part_in_the_round(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The model is that of the other three, and the log is as if it had said nothing."""
    cases = [*MALFORMED.items(), *EXTRA.items(), *FALSE_CLAIMS.items(), *FAULTS.items()]
    assert [len(table) for table in (MALFORMED, EXTRA, FALSE_CLAIMS, FAULTS)] == [45, 11, 18, 11]
    rounds, saboteur = len(cases), FIRST_NODE + SABOTEUR
    absent_model, absent = train(tmp_path / "absent", rounds, "train", {saboteur: [lose] * rounds})
    caplog.clear()
    changes = [change for _, (change, _) in cases]
    model, events = train(tmp_path / "run", rounds, "train", {saboteur: changes})
    assert torch.equal(model, absent_model)
    messages = list_messages(caplog, "Left out client 3: ")
    assert len(messages) == rounds
    for (name, (_, reason)), event, expected in zip(cases, events, absent, strict=True):
        (rejected,) = [r for r in event["rejected"] if r["client"] == SABOTEUR]
        assert re.search(reason, rejected["reason"]), (name, rejected)
        assert len(rejected["reason"]) <= 320 and rejected["reason"].isprintable(), name
        assert {**event, "rejected": 0, "seconds": 0} == {**expected, "rejected": 0, "seconds": 0}


def test_false_metrics_beside_a_sound_update_cost_themselves(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """All four clients' updates count; the log has the honest clients' names, and their sizes."""
    assert [len(table) for table in (METRICS, ANSWERS)] == [15, 19]
    rounds, saboteur = len(METRICS), FIRST_NODE + SABOTEUR
    _, honest = train(tmp_path / "honest", rounds)
    changes = [change for change, _ in METRICS.values()]
    _, events = train(tmp_path / "run", rounds, "train", {saboteur: changes})
    assert len(list_messages(caplog, "Left out metrics of client 3: ")) == rounds
    for (name, (_, reason)), event, expected in zip(METRICS.items(), events, honest, strict=True):
        (left_out,) = event.pop("metrics-left-out")
        assert left_out["client"] == SABOTEUR, name
        assert re.search(reason, left_out["reason"]), (name, left_out)
        assert event.keys() <= expected.keys() and event["rejected"] == [], name
        lacking = expected.keys() - event.keys()  # of a class that the saboteur alone saw
        assert all(key[-1].isdigit() for key in lacking), name
        for key in ("loss", "spread", "attention-share", "plain-spread", "accuracy"):
            assert event[key] == pytest.approx(expected[key], rel=0.3), (name, key)


def test_nodes_that_lie_before_round_one_are_not_let_in(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Beside four honest ones, before them in time: the run is theirs, and the log says why."""
    honest, _ = train(tmp_path / "honest", 2)
    nodes = {FIRST_NODE + CLIENTS + k: [change] for k, (change, _) in enumerate(ANSWERS.values())}
    kind = f"query.{record_names.COUNT_QUERY}"
    model, events = train(tmp_path / "run", 2, kind, nodes, surplus=len(ANSWERS))
    assert torch.equal(model, honest)
    assert [event["rejected"] for event in events] == [[], []]
    messages = list_messages(caplog, "A node cannot take part")
    for (name, (_, reason)), message in zip(ANSWERS.items(), messages, strict=True):
        assert re.search(reason, message) and len(message) < 400, (name, message)
