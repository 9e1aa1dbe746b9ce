"""Contents of a node's reply, and what may be wrong with them."""

import re
from collections.abc import Mapping, MutableMapping, Sequence
from io import BytesIO
from math import inf, nan, prod
from typing import Any, NamedTuple

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Message, Metadata, MetricRecord, RecordDict
from flwr.common.constant import ErrorCode
from jaxtyping import Float, Int
from torch import Tensor

from fedcel.federation import ClientUpdate, record_names
from fedcel.nets import to_vector

MAX_REASON = 300  # characters of a client's own words that reach the log
LOST_STATE = (
    "Client %s began afresh: its node has not the losses' state after round %d. The model is "
    "another than with it; give the node the state-path that it had"
)
"""A warning of the log."""
_MAX_RECORDS = 8  # of a reply whose names are listed
_MAX_HEADER = 1024  # bytes of an array before its values; NumPy writes 128
_MOST_ROUNDS = 2**31
_MAX_GROWTH = 1000.0  # times the model's own norm, plus 1: no honest update is as long
_CLAIMS = (
    record_names.PARTITION,
    record_names.EXAMPLES,
    record_names.HAS_NODE_DATA,
    record_names.CODE,
)
"""The numbers in an answer to the query `count`."""
_FLOWERS_WRAPPER = re.compile(r"<class '([\w.<>()]{1,200})'>:<'(.*)'>", re.DOTALL)
"""Of a ClientApp's exception, in the reason of an error."""
_SIMULATIONS_WRAPPER = "Exception ClientAppException occurred. Message: "
"""After it, and a traceback of Ray's, stand an exception's words in a simulation of Flower's."""


class Expectation(NamedTuple):
    """Requirements of a valid reply to a round."""

    number: int
    """The round."""
    partition: int
    """That the node holds."""
    shapes: list[tuple[int, ...]]
    """The shapes of the model's arrays."""
    model: Float[Tensor, " P"]
    examples: int
    """That the client told before round 1."""
    trained: Int[Tensor, " M"] | None = None
    """Positions of the parameters that are trained; None: all are."""


def describe_failure(reply: Message) -> str | None:
    """Describe why a client gave no answer; None where it gave one.

    An exception that Flower wrapped into its repr of a class is told in its words. What fedcel
    raises describes itself; of others the kind says the most.
    """
    if not reply.has_error():
        return None
    reason = str(reply.error.reason)
    if wrapped := _FLOWERS_WRAPPER.fullmatch(reason):
        kind, text = wrapped.groups()
        name = "" if kind.startswith("fedcel.") else kind.rpartition(".")[2]
        reason = ": ".join(filter(None, [name, text])) or kind
        if _SIMULATIONS_WRAPPER in text:
            reason = text.rpartition(_SIMULATIONS_WRAPPER)[2]
    return f"the client failed: {to_printable(reason)}"


def is_node_lost(reply: Message) -> bool:
    """Whether a reply is the SuperLink's, which hears nothing of the node any more."""
    return reply.has_error() and reply.error.code == ErrorCode.NODE_UNAVAILABLE


def to_printable(text: str) -> str:
    """Return the beginning of a text in a line that any terminal and file takes."""
    beginning = text[: 4 * MAX_REASON]  # not all of what may be a gigabyte
    printable = "".join(c if c.isprintable() else " " for c in beginning)
    return " ".join(printable.split())[:MAX_REASON]


class Claim(NamedTuple):
    """Data that a node says it holds."""

    partition: int
    examples: int
    has_node_data: bool
    """Whether its images are its own, not dealt from the run's data."""
    code: int | None
    """The digest of the code that it runs; None where a ClientApp of another's does not say."""


def read_claim(reply: Message) -> Claim | str:
    """Read what a node says it holds, or describe what is wrong with its answer."""
    due = {record_names.METRICS: MetricRecord}
    if reason := describe_failure(reply) or find_record_fault(reply.content, due):
        return reason
    metrics = reply.content.metric_records[record_names.METRICS]
    if not set(metrics) <= {*_CLAIMS}:
        return f"its answer must be the numbers {', '.join(_CLAIMS)}, and nothing else"
    partition, examples, has_node_data, code = (metrics.get(name) for name in _CLAIMS)
    if type(partition) is not int or type(examples) is not int:
        return f"partition {_describe(partition)}, {_describe(examples)} examples"
    has_answered = type(has_node_data) is int and has_node_data in (0, 1)
    if not (has_node_data is None or has_answered):  # another ClientApp may not say
        return f"{record_names.HAS_NODE_DATA} is {_describe(has_node_data)}, must be 0 or 1"
    if not (code is None or type(code) is int):
        return f"{record_names.CODE} is {_describe(code)}, must be one whole number"
    return Claim(partition, examples, has_node_data == 1, code)


def _describe(value: object) -> str:
    """Return a number for a sentence; a list, which may be long, by its length."""
    return f"a list of {len(value)} numbers" if isinstance(value, list) else str(value)


def find_sender(
    reply: Message, partitions: Mapping[int, int], sent: list[tuple[Metadata, int]]
) -> int:
    """Find which partition a reply is from, -1 where nobody knows.

    Where a node is gone the SuperLink answers, under its own id, to the message that was `sent`.
    """
    if (node := reply.metadata.src_node_id) in partitions or not reply.has_error():
        return partitions.get(node, -1)
    clients = {metadata.message_id: k for metadata, k in sent if metadata.message_id}
    return clients.get(reply.metadata.reply_to_message_id, -1)


def find_record_fault(records: RecordDict, due: Mapping[str, type]) -> str | None:
    """Describe why a reply's records are not just those that are due; none is decoded for that.

    One beside them would be kept in memory for nothing, as long as a sender likes to make it.
    """
    if len(records) > _MAX_RECORDS:
        return f"{len(records)} records, must be {list(due)}"
    if set(records) != {*due}:
        return f"records {sorted(records)}, must be {list(due)}"
    if not all(isinstance(records[name], kind) for name, kind in due.items()):
        return f"records {sorted(records)} of other kinds than those that are due"
    return None


def find_reply_fault(reply: Message, expected: Expectation) -> str | None:
    """Describe why to leave a reply to a round out; None when it is valid."""
    records = reply.content
    due = {record_names.DELTA: ArrayRecord, record_names.METRICS: MetricRecord}
    if reason := find_record_fault(records, due):
        return reason
    if reason := _find_false_claim(records.metric_records[record_names.METRICS], expected):
        return reason
    delta = _read_vector(records.array_records[record_names.DELTA], expected.shapes)
    if isinstance(delta, str):
        return delta
    if expected.trained is not None and delta.index_fill(0, expected.trained, 0).any():
        return "it moves parameters that are frozen (requires_grad=False)"
    norm = float(torch.linalg.vector_norm(delta.double()))
    limit = _MAX_GROWTH * (1 + float(torch.linalg.vector_norm(expected.model.double())))
    return f"its norm is {norm:.4g}, at most {limit:.4g} is accepted" if norm > limit else None


def _find_false_claim(metrics: MetricRecord, expected: Expectation) -> str | None:
    """Describe a claim that is another's than it should be.

    A ClientApp of another's making may leave out the round and the partition.
    """
    number, examples = expected.number, record_names.EXAMPLES
    for name, right, sentence in (
        (record_names.ROUND, number, "it answers round {}, this is round {}"),
        (record_names.PARTITION, expected.partition, "it claims partition {} and holds {}"),
        (examples, expected.examples, "it claims {} examples and held {} before round 1"),
    ):
        claimed = metrics.get(name, None if name == examples else right)
        if type(claimed) is not int or claimed != right:
            return sentence.format(_describe(claimed), right)
    for name in (record_names.STATE_START, record_names.STATE_ROUND):
        claimed = metrics.get(name, 0)
        if type(claimed) is not int or not 0 <= claimed <= number:
            return f"it claims a state of round {_describe(claimed)}, this is round {number}"
    return None


def _read_header(array: Array) -> tuple[tuple[int, ...], np.dtype[Any], int]:
    """Read shape, dtype and length of an array's header; ValueError where the bytes are none."""
    if array.stype != "numpy.ndarray":
        raise ValueError(f"it is a {to_printable(array.stype)!r}, must be 'numpy.ndarray'")
    stream = BytesIO(array.data[:_MAX_HEADER])
    version = np.lib.format.read_magic(stream)
    if version != (1, 0):
        raise ValueError(f"NumPy's format {version}, must be (1, 0)")
    shape, _, dtype = np.lib.format.read_array_header_1_0(stream, max_header_size=_MAX_HEADER)
    return shape, dtype, stream.tell()


def _find_encoding_fault(record: ArrayRecord, shapes: Sequence[tuple[int, ...]]) -> str | None:
    """Describe why the bytes of a record are not float32 arrays of these shapes.

    Nothing is decoded, so that no bytes make the server reserve more memory than they take.
    """
    if len(record) != len(shapes):
        return f"{len(record)} arrays, must be of shapes {list(shapes)}"
    try:
        headers = [_read_header(array) for array in record.values()]
    except Exception as error:  # whatever a hostile sender's bytes make of the decoder
        return f"they cannot be read: {error}"
    if (shapes_received := [shape for shape, _, _ in headers]) != list(shapes):
        return f"shapes {shapes_received}, must be {list(shapes)}"
    if dtypes := sorted({str(dtype) for _, dtype, _ in headers if dtype != np.float32}):
        return f"dtypes {dtypes}, must be float32"
    for array, (shape, dtype, header) in zip(record.values(), headers, strict=True):
        if len(array.data) != (size := header + prod(shape) * dtype.itemsize):
            return f"they cannot be read: an array has {len(array.data)} bytes, must have {size}"
    return None


def _read_vector(record: ArrayRecord, shapes: list[tuple[int, ...]]) -> Float[Tensor, " P"] | str:
    """Return finite float32 arrays of these shapes as one, or describe what is wrong."""
    if reason := _find_encoding_fault(record, shapes):
        return f"its arrays: {reason}"
    vector = to_vector(record.to_numpy_ndarrays())
    return vector if vector.isfinite().all() else "it holds NaN or infinity"


def read_update(records: RecordDict, *, state_round: int | None = None) -> ClientUpdate:
    """Read the delta and the metrics of a valid reply.

    It was to start from the state of `state_round`, None where nobody knows.
    """
    metrics = records.metric_records[record_names.METRICS]
    numbers = {name: _to_float(value) for name, value in metrics.items()}
    reply_round, is_lost = pop_state_fence(numbers, state_round)
    delta = to_vector(records.array_records[record_names.DELTA].to_numpy_ndarrays())
    return ClientUpdate(
        delta,
        model=torch.empty(0),
        state={},
        metrics=numbers,
        state_round=reply_round,
        has_lost_state=is_lost,
    )


def pop_state_fence(numbers: MutableMapping[str, Any], expected: int | None) -> tuple[int, bool]:
    """Take what a reply says of the node and the client's state out of its numbers.

    Returned is the round from whose state the client starts the next time, 0 for none, and whether
    it started from another than it should have.
    """
    start = numbers.pop(record_names.STATE_START, None)
    is_lost = None not in (start, expected) and start != expected
    numbers.pop(record_names.INCARNATION, None)
    claimed = numbers.pop(record_names.STATE_ROUND, 0)
    is_round = isinstance(claimed, int | float) and 0 <= claimed < _MOST_ROUNDS  # else hostile
    return int(claimed) if is_round else 0, is_lost


def _to_float(value: object) -> float:
    """Return a number as a float, infinity for one too large; NaN, refused later, for a list."""
    try:
        return float(value) if isinstance(value, int | float) else nan
    except OverflowError:
        return inf
