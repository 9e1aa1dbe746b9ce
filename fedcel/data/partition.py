"""Who holds which training image: even, Dirichlet, shards of few classes, or as it was collected.

The deals of flwr-datasets' IidPartitioner, DirichletPartitioner and ShardPartitioner, which the
tests hold these to. Own code beside it: there each client's part is a table of its own, and 10 000
clients take 23 s; here all are one sort, and a million take a second.
"""

import math

import numpy as np
import torch
from jaxtyping import Int
from numpy.typing import NDArray
from torch import Tensor

from fedcel.data.data_settings import DataSettings
from fedcel.data.shares import Shares
from fedcel.errors import DataError

DRAWS = 11
"""Draws of a Dirichlet distribution until every client has an image, at most."""


def partition_examples(
    y: Int[Tensor, " N"],
    clients: int,
    data: DataSettings,
    seed: int,
    *,
    holders: Int[Tensor, " N"] | None = None,
) -> Shares:
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
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(y))
    labels, deal = y.numpy()[order], np.random.default_rng(int(rng.integers(2**63)))
    if data.partition == "iid":
        size, more = divmod(len(y), clients)
        positions, sizes = np.arange(len(y)), size + (np.arange(clients) < more)
    elif data.partition == "dirichlet":
        positions, sizes = _deal_dirichlet(labels, clients, data.alpha, deal)
    else:
        positions, sizes = _deal_shards(labels, clients, data.shards, deal)
    return Shares(torch.from_numpy(order[positions]), torch.from_numpy(sizes))


def _deal_dirichlet(
    labels: NDArray[np.int64], clients: int, alpha: float, rng: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return positions, client after client, and sizes; DataError where a client gets nothing."""
    members = [np.flatnonzero(labels == label) for label in np.unique(labels)]
    for _ in range(DRAWS):
        owners = []
        for positions in members:
            shares = rng.dirichlet(np.full(clients, alpha))
            cuts = (shares.cumsum() * len(positions)).astype(int)[:-1]
            counts = np.diff(cuts, prepend=0, append=len(positions))
            owners.append(np.repeat(np.arange(clients), counts))
        owner = np.concatenate(owners)
        sizes = np.bincount(owner, minlength=clients)
        if sizes.min() > 0:
            order = owner.argsort(kind="stable")
            return _shuffle_parts(np.concatenate(members)[order], sizes, rng), sizes
    raise DataError(
        f"data.alpha {alpha} left one of {clients} clients without any of {len(labels)} images in "
        f"each of {DRAWS} draws; take fewer clients or raise data.alpha"
    )


def _deal_shards(
    labels: NDArray[np.int64], clients: int, per_client: int, rng: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return positions, client after client, and sizes."""
    images = len(labels)
    size = math.ceil(images / (clients * per_client))
    if math.ceil(images / size) < clients:
        size = images // clients
    shards = math.ceil(images / size)
    start = rng.permutation(shards) * size
    length = np.minimum(size, images - start)
    fewest, more = divmod(shards, clients)
    owner = np.repeat(np.arange(clients), fewest + (np.arange(clients) < more))
    sizes = np.bincount(owner, weights=length, minlength=clients).astype(np.int64)
    places = np.repeat(start - (length.cumsum() - length), length) + np.arange(images)
    positions = labels.argsort(kind="stable")[_shuffle_parts(places, sizes, rng)]
    return positions, sizes


def _shuffle_parts(
    positions: NDArray[np.int64], sizes: NDArray[np.int64], rng: np.random.Generator
) -> NDArray[np.int64]:
    """Shuffle each client's part in place, one after the other."""
    end = 0
    for size in sizes.tolist():
        rng.shuffle(positions[end : end + size])
        end += size
    return positions


def _deal_holders(
    clients: int, data: DataSettings, seed: int, holders: Int[Tensor, " N"] | None
) -> Shares:
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
    sizes = np.bincount(owner, minlength=clients)
    return Shares(torch.from_numpy(owner.argsort(kind="stable")), torch.from_numpy(sizes))
