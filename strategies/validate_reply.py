"""What is in a reply, and what may be wrong with it."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, Message, Metadata, MetricRecord, RecordDict
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from fedcel.federation import record_names
from fedcel.losses.cel import averaged_centres
from fedcel.nets.flat_parameters import to_vector

FAR = 1000.0  # times the model's own norm, plus 1: no honest update is as long
LONGEST = 300  # characters of a client's own words that reach the log


def failure(reply: Message) -> str | None:
    """Say why a client gave no answer, or None."""
    if not reply.has_error():
        return None
    said = "".join(c if c.isprintable() else " " for c in str(reply.error.reason))
    return f"the client failed: {' '.join(said.split())[:LONGEST]}"


def claimed(reply: Message) -> tuple[int, int]:
    """Return which partition a node says it holds and how many examples; -1 for no number."""
    told = reply.content.metric_records.get(record_names.METRICS, MetricRecord())
    found = told.get(record_names.PARTITION), told.get(record_names.EXAMPLES)
    holder, held = (value if isinstance(value, int) else -1 for value in found)
    return holder, held


def owned(reply: Message) -> bool:
    """Say whether a node's images are its own, not dealt from the run's data."""
    told = reply.content.metric_records.get(record_names.METRICS, MetricRecord())
    return bool(told.get(record_names.OWN, 0))


def whose(reply: Message, partition: dict[int, int], sent: list[tuple[Metadata, int]]) -> int:
    """Return which partition a reply is from, -1 where nobody knows.

    Where a node is gone the SuperLink answers, under its own id, to the message that was `sent`.
    """
    if (node := reply.metadata.src_node_id) in partition or not reply.has_error():
        return partition.get(node, -1)
    asked = {one.message_id: holder for one, holder in sent if one.message_id}
    return asked.get(reply.metadata.reply_to_message_id, -1)


def addressed(
    kind: str, node: Mapping[int, int], contents: Mapping[int, RecordDict]
) -> tuple[list[Message], list[tuple[Metadata, int]]]:
    """Return a message to the `node` of each partition, and what `whose` wants to know of them."""
    # A list: the deployed grid goes through it twice.
    messages = [Message(content, node[k], kind) for k, content in contents.items()]
    return messages, [(m.metadata, k) for m, k in zip(messages, contents, strict=True)]


def decoded(record: ArrayRecord) -> list[NDArray[Any]] | str:
    """Return a record's arrays, or say what is wrong with the bytes that should be arrays."""
    try:
        arrays = record.to_numpy_ndarrays()
    except Exception as error:  # whatever a hostile sender's bytes make of the decoder
        return f"cannot be read: {error}"
    if not all(isinstance(array, np.ndarray) for array in arrays):  # an archive is no array
        return "cannot be read: they are no arrays"
    return arrays


def vector(record: ArrayRecord, shapes: list[tuple[int, ...]]) -> Float[Tensor, " P"] | str:
    """Return arrays that are float32, finite and of these shapes as one, or say what is wrong."""
    arrays = decoded(record)
    if isinstance(arrays, str):
        return f"its arrays {arrays}"
    if [array.shape for array in arrays] != shapes:
        return f"shapes {[array.shape for array in arrays]}, must be {shapes}"
    if any(array.dtype != np.float32 for array in arrays):
        return f"dtypes {sorted({str(array.dtype) for array in arrays})}, must be float32"
    if not all(np.isfinite(array).all() for array in arrays):
        return "it holds NaN or infinity"
    return to_vector(arrays)


def gradient_of(records: RecordDict) -> torch.Tensor:
    """Return the mean gradient of a sound reply."""
    return torch.from_numpy(
        records.array_records[record_names.GRADIENT].to_numpy_ndarrays()[0].copy()
    )


def too_long(
    move: Float[Tensor, " P"], model: Float[Tensor, " P"], most: float | str, what: str
) -> str | None:
    """Say that a move of the model is longer than `most`, or than FAR where it is none, or None."""
    norm = float(torch.linalg.vector_norm(move.double()))
    if isinstance(most, str):
        most = FAR * (1 + float(torch.linalg.vector_norm(model.double())))
    return f"{what} {norm:.4g}, at most {most:.4g} is accepted" if norm > most else None


def statistics(records: RecordDict) -> averaged_centres.Statistics:
    """Return the class centres of a sound reply."""
    arrays = records.array_records[record_names.STATISTICS].to_numpy_ndarrays()
    return averaged_centres.Statistics(*(torch.from_numpy(array.copy()) for array in arrays))


def centres_fault(
    records: RecordDict, held: averaged_centres.Shared, images: int, bounded: bool
) -> str | None:
    """Say what is wrong with the class centres of a client of so many `images`, or None."""
    record = records.array_records.get(record_names.STATISTICS)
    if record is None:
        return f"records {sorted(records)}, must have {record_names.STATISTICS!r}"
    arrays = decoded(record)
    if isinstance(arrays, str):
        return f"its statistics {arrays}"
    return averaged_centres.fault(arrays, held, images, bounded)


def numbers(record: MetricRecord) -> dict[str, float]:
    """Return the metrics of a reply that are single numbers."""
    return {key: float(v) for key, v in record.items() if isinstance(v, int | float)}
