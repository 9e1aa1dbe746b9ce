"""Names that the server's and the clients' side of Flower share."""

from collections.abc import Mapping, Sequence
from typing import TypeVar

ARRAYS = "arrays"  # record: the global model, down; a client's weights, up, if asked for
DELTA = "delta"  # record: last minus received model, up
CONFIG = "config"  # record: what a round asks of a client, down
METRICS = "metrics"  # record: numbers, up
STATISTICS = "statistics"  # record: class centres, weights, counts of a client, up, if asked for
CENTRES = "centres"  # record: the centres averaged over clients and their weights, down
GRADIENT = "gradient"  # record: a client's mean gradient up, the mean over clients down, (P,)
SCALE = "scale"  # record: the step size of each parameter in units of eta, (P,), down
CEL = "cel"  # record in a client's own state; never sent
SMASHED = "smashed"  # record: smashed data of a query, (B, D)
SAMPLES = "samples"  # record: posterior samples as flat vectors, (S, P)
LOGITS = "logits"  # record: the private answer, (B, C)

ROUND = "server-round"
SHARE = "share"  # w_k, the weight that the server will give to this client's delta
TOTAL = "total-examples"  # N over all clients
BROUGHT = "brought"  # which records' arrays follow those of the model or the update, in order
THRESHOLD = "cel-threshold"  # tau of this round, where it is adaptive
PROXIMAL = "proximal-mu"  # FedProx's own name for its pull
SHAPE = "image-shape"  # channels, height, width that the net takes
CLASSES = "classes"  # that the net tells apart
NAMES = "class-names"  # of the server's class folders, where its source has such
EXAMPLES = "num-examples"  # N_k; Flower's own name
PARTITION = "partition"
OWN = "own-images"  # 1 where a node's images are its own, not dealt from the run's data

COUNT_QUERY = "count"  # query action: how many examples do you hold?
GRADIENT_QUERY = "gradient"  # query action: the mean gradient of your images at this model
LOGITS_QUERY = "logits"  # query action: answer smashed data with private logits

ARRAYS_OF = {CENTRES: 2, STATISTICS: 3, GRADIENT: 1, SCALE: 1}
"""Arrays of each record that may follow those of the model or the update."""
Array = TypeVar("Array")


def joined(records: Mapping[str, Sequence[Array]]) -> tuple[str, list[Array]]:
    """Return the names of the records and all their arrays in a row."""
    return ",".join(records), [array for arrays in records.values() for array in arrays]


def parted(names: str, arrays: Sequence[Array]) -> dict[str, list[Array]]:
    """Return the arrays by record again; ValueError when they are not those of the names."""
    found: dict[str, list[Array]] = {}
    rest = list(arrays)
    for name in filter(None, names.split(",")):
        count = ARRAYS_OF.get(name, len(rest) + 1)
        found[name], rest = rest[:count], rest[count:]
        if len(found[name]) < count:
            raise ValueError(f"records {names!r} and {len(arrays)} arrays do not fit together")
    if rest:
        raise ValueError(f"{len(rest)} arrays belong to no record of {names!r}")
    return found
