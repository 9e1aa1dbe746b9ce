"""What is in a node's reply, and what may be wrong with it."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from flwr.app import ArrayRecord, Message, Metadata, MetricRecord, RecordDict
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from fedcel.federation import ClientUpdate, record_names
from fedcel.losses.cel import CentreStatistics, SharedCentres, averaged_centres
from fedcel.nets import to_vector

MAX_REASON = 300  # characters of a client's own words that reach the log
_MAX_GROWTH = 1000.0  # times the model's own norm, plus 1: no honest update is as long


class Expectation(NamedTuple):
    """What a valid reply to a round has to fit."""

    number: int
    """The round."""
    shapes: list[tuple[int, ...]]
    """The shapes of the model's arrays."""
    model: Float[Tensor, " P"]
    max_norm: float | str
    """The largest norm of an update; "none": far beyond the model's own."""
    examples: int
    """That the client told before round 1."""
    centres: SharedCentres | None
    """What class centres have to fit, where they are due."""
    is_bounded: bool
    """Whether the net bounds its features."""
    is_gradient_due: bool
    """Whether a reply to a round brings the client's mean gradient."""
    gradient_scale: float
    """eta times steps, by which a gradient moves the model."""


def describe_failure(reply: Message) -> str | None:
    """Say why a client gave no answer, or None."""
    if not reply.has_error():
        return None
    printable = "".join(c if c.isprintable() else " " for c in str(reply.error.reason))
    return f"the client failed: {' '.join(printable.split())[:MAX_REASON]}"


def read_claim(reply: Message) -> tuple[int, int]:
    """Read which partition a node says it holds and how many examples; -1 for no number."""
    metrics = reply.content.metric_records.get(record_names.METRICS, MetricRecord())
    claim = metrics.get(record_names.PARTITION), metrics.get(record_names.EXAMPLES)
    partition, count = (value if isinstance(value, int) else -1 for value in claim)
    return partition, count


def has_node_data(reply: Message) -> bool:
    """Say whether a node's images are its own, not dealt from the run's data."""
    metrics = reply.content.metric_records.get(record_names.METRICS, MetricRecord())
    return bool(metrics.get(record_names.HAS_NODE_DATA, 0))


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


def address_messages(
    kind: str, nodes: Mapping[int, int], contents: Mapping[int, RecordDict]
) -> tuple[list[Message], list[tuple[Metadata, int]]]:
    """Make a message to the node of each partition, and what `find_sender` has to know of them.

    Args:
        kind: The type of the messages.
        nodes: Partition -> node.
        contents: Partition -> what is sent to it.
    """
    # A list: the deployed grid goes through it twice.
    messages = [Message(content, nodes[k], kind) for k, content in contents.items()]
    return messages, [(m.metadata, k) for m, k in zip(messages, contents, strict=True)]


def find_reply_fault(reply: Message, expected: Expectation) -> str | None:
    """Say why to leave a reply to a round out, or None when it is valid."""
    records = reply.content
    delta = records.array_records.get(record_names.DELTA)
    metrics = records.metric_records.get(record_names.METRICS)
    if delta is None or metrics is None:
        return f"records {sorted(records)}, must be {[record_names.DELTA, record_names.METRICS]}"
    if (answered := metrics.get(record_names.ROUND, expected.number)) != expected.number:
        return f"it answers round {answered}, this is round {expected.number}"
    claimed = metrics.get(record_names.EXAMPLES)
    if claimed != expected.examples:
        return f"it claims {claimed} examples and held {expected.examples} before round 1"
    return (
        _find_delta_fault(delta, expected)
        or _find_centres_fault(records, expected)
        or (find_gradient_fault(records, expected) if expected.is_gradient_due else None)
    )


def _find_delta_fault(record: ArrayRecord, expected: Expectation) -> str | None:
    delta = _read_vector(record, expected.shapes)
    if isinstance(delta, str):
        return delta
    return _find_excess(delta, expected, "its norm is")


def find_gradient_fault(records: RecordDict, expected: Expectation) -> str | None:
    """Say what is wrong with a client's mean gradient, or None."""
    record = records.array_records.get(record_names.GRADIENT)
    if record is None:
        return f"records {sorted(records)}, must have {record_names.GRADIENT!r}"
    gradient = _read_vector(record, [tuple(expected.model.shape)])
    if isinstance(gradient, str):
        return f"its gradient: {gradient}"
    move = gradient.double() * expected.gradient_scale
    return _find_excess(move, expected, "its gradient moves the model by")


def _find_centres_fault(records: RecordDict, expected: Expectation) -> str | None:
    if expected.centres is None:
        return None
    record = records.array_records.get(record_names.STATISTICS)
    if record is None:
        return f"records {sorted(records)}, must have {record_names.STATISTICS!r}"
    arrays = _decode_arrays(record)
    if isinstance(arrays, str):
        return f"its statistics {arrays}"
    return averaged_centres.find_statistics_fault(
        arrays, expected.centres, expected.examples, expected.is_bounded
    )


def _find_excess(move: Float[Tensor, " P"], expected: Expectation, description: str) -> str | None:
    """Say that a move of the model is longer than is accepted, or None."""
    norm = float(torch.linalg.vector_norm(move.double()))
    limit = expected.max_norm
    if isinstance(limit, str):
        limit = _MAX_GROWTH * (1 + float(torch.linalg.vector_norm(expected.model.double())))
    return f"{description} {norm:.4g}, at most {limit:.4g} is accepted" if norm > limit else None


def _decode_arrays(record: ArrayRecord) -> list[NDArray[Any]] | str:
    """Return a record's arrays, or say what is wrong with the bytes that should be arrays."""
    try:
        arrays = record.to_numpy_ndarrays()
    except Exception as error:  # whatever a hostile sender's bytes make of the decoder
        return f"cannot be read: {error}"
    if not all(isinstance(array, np.ndarray) for array in arrays):  # an archive is no array
        return "cannot be read: they are no arrays"
    return arrays


def _read_vector(record: ArrayRecord, shapes: list[tuple[int, ...]]) -> Float[Tensor, " P"] | str:
    """Return arrays that are float32, finite and of these shapes as one, or say what is wrong."""
    arrays = _decode_arrays(record)
    if isinstance(arrays, str):
        return f"its arrays {arrays}"
    if [array.shape for array in arrays] != shapes:
        return f"shapes {[array.shape for array in arrays]}, must be {shapes}"
    if any(array.dtype != np.float32 for array in arrays):
        return f"dtypes {sorted({str(array.dtype) for array in arrays})}, must be float32"
    if not all(np.isfinite(array).all() for array in arrays):
        return "it holds NaN or infinity"
    return to_vector(arrays)


def read_gradient(records: RecordDict) -> Float[Tensor, " P"]:
    """Read the mean gradient (P,) of a valid reply."""
    (gradient,) = records.array_records[record_names.GRADIENT].to_numpy_ndarrays()
    return torch.from_numpy(gradient.copy())


def read_update(
    records: RecordDict, *, are_centres_due: bool, is_gradient_due: bool
) -> ClientUpdate:
    """Read a valid reply: delta, metrics, and what else was due."""
    centres = None
    if are_centres_due:
        arrays = records.array_records[record_names.STATISTICS].to_numpy_ndarrays()
        centres = CentreStatistics(*(torch.from_numpy(array.copy()) for array in arrays))
    delta = to_vector(records.array_records[record_names.DELTA].to_numpy_ndarrays())
    return ClientUpdate(
        delta,
        model=torch.empty(0),
        state={},
        metrics=read_numbers(records.metric_records[record_names.METRICS]),
        statistics=centres,
        gradient=read_gradient(records) if is_gradient_due else None,
    )


def read_numbers(record: MetricRecord) -> dict[str, float]:
    """Read the metrics of a reply that are single numbers."""
    return {key: float(v) for key, v in record.items() if isinstance(v, int | float)}
