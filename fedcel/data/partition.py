"""Who holds which training image: even, Dirichlet, or shards of few classes.

The dealing is flwr-datasets'; it sees labels and positions only, in memory.
"""

import math
import warnings

import numpy as np
import torch
from datasets import Dataset
from flwr_datasets.partitioner import (
    DirichletPartitioner,
    IidPartitioner,
    Partitioner,
    ShardPartitioner,
)
from jaxtyping import Int
from torch import Tensor

from fedcel.errors import DataError
from fedcel.settings_groups import Data

KNOWN_WARNINGS = (
    "The specified min_partition_size",  # a redraw of the Dirichlet; we report when it gives up
    "Specifying null_placement in SortOptions",  # pyarrow 25 on how `datasets` sorts
)


def partition(
    y: Int[Tensor, " N"], clients: int, data: Data, seed: int
) -> tuple[Int[Tensor, " _"], ...]:
    """Return each client's positions in labels y; every position goes to exactly one client.

    `dirichlet`: each class is dealt out in shares drawn from Dirichlet(alpha) (Yurochkin et al.,
    ICML 2019, section 4), redrawn up to ten times until every client has an image. `shards`: y
    sorted is cut into clients * shards pieces (McMahan et al., AISTATS 2017, section 3), dealt at
    random; where they do not come out even, the last is smaller and some clients get one less.
    The same seed gives the same result. DataError when a client would have no image at all.
    """
    if not 1 <= clients <= len(y):
        raise DataError(
            f"clients is {clients}, must be in 1..{len(y)}, the number of training images; "
            "take fewer clients or raise data.train"
        )
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(y))  # IidPartitioner cuts in order, the others within a class
    dealer = _dealer(len(y), clients, data, int(rng.integers(2**63)))
    dealer.dataset = Dataset.from_dict({"position": order, "label": y.numpy()[order]})
    with warnings.catch_warnings():
        for message in KNOWN_WARNINGS:
            warnings.filterwarnings("ignore", message)
        try:
            parts = [dealer.load_partition(client) for client in range(clients)]
        except ValueError as error:
            if data.partition != "dirichlet":
                raise
            raise DataError(
                f"data.alpha {data.alpha} left one of {clients} clients without any of "
                f"{len(y)} images in each of 11 draws; take fewer clients or raise data.alpha"
            ) from error
    return tuple(torch.tensor(part.with_format("numpy")["position"][:]) for part in parts)


def _dealer(images: int, clients: int, data: Data, seed: int) -> Partitioner:
    if data.partition == "iid":
        return IidPartitioner(clients)
    if data.partition == "dirichlet":
        return DirichletPartitioner(
            clients, "label", data.alpha, min_partition_size=1, self_balancing=False, seed=seed
        )
    # Asked for a number of shards, ShardPartitioner leaves out what does not come out even.
    size = math.ceil(images / (clients * data.shards))
    if math.ceil(images / size) < clients:
        size = images // clients
    return ShardPartitioner(
        clients, "label", shard_size=size, keep_incomplete_shard=True, seed=seed
    )
