"""Who holds which training image: even, Dirichlet, shards of few classes, or as it was collected.

The dealing is flwr-datasets'; it sees labels and positions only, in memory. Its partitioners of
natural holders make as many clients as there are holders or groups of a given size, so holders
are dealt to a given number of clients here.
"""

import math
import warnings
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from fedcel.errors import DataError
from fedcel.extras import import_optional
from fedcel.settings import DataSettings

if TYPE_CHECKING:
    from flwr_datasets.partitioner import Partitioner

KNOWN_WARNINGS = (
    "The specified min_partition_size",  # a redraw of the Dirichlet; we report when it gives up
    "Specifying null_placement in SortOptions",  # pyarrow 25 on how `datasets` sorts
)


def partition_examples(
    y: Int[Tensor, " N"],
    clients: int,
    data: DataSettings,
    seed: int,
    *,
    holders: Int[Tensor, " N"] | None = None,
) -> tuple[Int[Tensor, " _"], ...]:
    """Deal training images to clients.

    `iid`: at random, evenly. `dirichlet`: each class is dealt out in shares drawn from
    Dirichlet(alpha), redrawn up to ten times until every client has an image. `shards`: y sorted is
    cut into clients * shards pieces, dealt at random; where they do not come out even, the last is
    smaller and some clients get one less. `natural`: a client has all images of one holder or,
    drawn at random, of several.

    Args:
        y: Labels (N,).
        clients: Number of clients, in 1..N.
        data: The settings group `data`: `partition`, `alpha`, `shards`.
        seed: The same seed gives the same result.
        holders: Number of each image's holder (N,), for `natural`.

    Returns:
        Each client's positions in y; every position goes to exactly one client.

    Raises:
        DataError: A client would have no image, or nobody names holders.

    References:
        Yurochkin et al., ICML 2019, section 4 (`dirichlet`). McMahan et al., AISTATS 2017, section
        3 (`shards`).
    """
    if not 1 <= clients <= len(y):
        raise DataError(
            f"clients is {clients}, must be in 1..{len(y)}, the number of training images; "
            "take fewer clients or raise data.train"
        )
    if data.partition == "natural":
        return _deal_holders(clients, data, seed, holders)
    # A second of imports that a node with images of its own spares.
    dataset_class = import_optional("datasets").Dataset

    rng = np.random.default_rng(seed)
    order = rng.permutation(len(y))  # IidPartitioner cuts in order, the others within a class
    partitioner = _make_partitioner(len(y), clients, data, int(rng.integers(2**63)))
    partitioner.dataset = dataset_class.from_dict({"position": order, "label": y.numpy()[order]})
    with warnings.catch_warnings():
        for message in KNOWN_WARNINGS:
            warnings.filterwarnings("ignore", message)
        try:
            # A part's table is dropped at once: ten thousand of them are some 20 MB.
            return tuple(_load_positions(partitioner, client) for client in range(clients))
        except ValueError as error:
            if data.partition != "dirichlet":
                raise
            raise DataError(
                f"data.alpha {data.alpha} left one of {clients} clients without any of "
                f"{len(y)} images in each of 11 draws; take fewer clients or raise data.alpha"
            ) from error


def _load_positions(partitioner: "Partitioner", client: int) -> Int[Tensor, " _"]:
    return torch.tensor(partitioner.load_partition(client).with_format("numpy")["position"][:])


def _deal_holders(
    clients: int, data: DataSettings, seed: int, holders: Int[Tensor, " N"] | None
) -> tuple[Int[Tensor, " _"], ...]:
    if holders is None:
        raise DataError(
            f"data.partition is 'natural' and data.source {data.source!r} names no holders; give "
            "CLASS/HOLDER/IMAGE folders, set data.holder-column, or take another partition"
        )
    names, number = np.unique(holders.numpy(), return_inverse=True)
    if clients > len(names):
        raise DataError(
            f"clients is {clients}, data.partition 'natural', must be in 1..{len(names)}, the "
            "number of holders; take fewer clients"
        )
    owner = (np.random.default_rng(seed).permutation(len(names)) % clients)[number]
    return tuple(torch.from_numpy((owner == client).nonzero()[0]) for client in range(clients))


def _make_partitioner(images: int, clients: int, data: DataSettings, seed: int) -> "Partitioner":
    partitioners = import_optional("flwr_datasets.partitioner")
    if data.partition == "iid":
        return partitioners.IidPartitioner(clients)
    if data.partition == "dirichlet":
        return partitioners.DirichletPartitioner(
            clients, "label", data.alpha, min_partition_size=1, self_balancing=False, seed=seed
        )
    # Asked for a number of shards, ShardPartitioner leaves out what does not come out even.
    size = math.ceil(images / (clients * data.shards))
    if math.ceil(images / size) < clients:
        size = images // clients
    return partitioners.ShardPartitioner(
        clients, "label", shard_size=size, keep_incomplete_shard=True, seed=seed
    )
