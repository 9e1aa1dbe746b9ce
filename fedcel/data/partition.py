"""Partition of training images among clients: even, Dirichlet, shards, or as it was collected.

The deals of flwr-datasets' IidPartitioner, DirichletPartitioner and ShardPartitioner, which the
tests hold these to. Own code beside it: there each client's part is a table of its own, and 10 000
clients take 23 s; here all are one sort, and a million take a second.
"""

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import Literal, TypeVar, overload

import numpy as np
import torch
from jaxtyping import Int
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from fedcel.data.images import Images
from fedcel.errors import DataError
from fedcel.settings_table import Kind, Positive

SHARDS_A_CLIENT = 2
DRAWS = 11
"""Draws of a Dirichlet distribution until every client has an image, at most."""
Positions = Int[Tensor, " _"]
Parts = tuple[NDArray[np.int64], NDArray[np.int64]]
"""Positions, one client's after the other's, and how many each client has."""


Part = TypeVar("Part", Images, Positions)


class ClientParts(Sequence[Part]):
    """Parts of a whole, one for each client, made when they are read.

    Args:
        sizes: How many each client has, 0 or more.
    """

    def __init__(self, sizes: Int[Tensor, " K"]) -> None:
        self.sizes = sizes
        self._ends: list[int] = [0, *sizes.cumsum(0).tolist()]

    @abstractmethod
    def take(self, rows: slice | Positions) -> Part:
        """Take places among those of all clients, one client's after the other's."""

    def __len__(self) -> int:
        """Return how many clients there are."""
        return len(self._ends) - 1

    @overload
    def __getitem__(self, client: int) -> Part: ...
    @overload
    def __getitem__(self, client: slice) -> Sequence[Part]: ...
    def __getitem__(self, client: int | slice) -> Part | Sequence[Part]:
        """Return one client's part, or those of several."""
        if isinstance(client, slice):
            return [self[k] for k in range(*client.indices(len(self)))]
        count = len(self)
        if not -count <= client < count:
            raise IndexError(f"client {client} of {count}")
        return self.take(slice(*self._ends[client % count : client % count + 2]))


class ClientSlices(ClientParts[Positions]):
    """Each client's positions.

    Args:
        whole: Positions (N,) of all clients, one client's after the other's.
        sizes: How many each client has; they add up to N.
    """

    def __init__(self, whole: Positions, sizes: Int[Tensor, " K"]) -> None:
        super().__init__(sizes)
        self.whole = whole

    def take(self, rows: slice | Positions) -> Positions:
        """Take positions."""
        return self.whole[rows]


class ClientImages(ClientParts[Images]):
    """Each client's images.

    Args:
        source: Images of a source, which may be a file mapped into memory.
        positions: Each client's positions among them.
    """

    def __init__(self, source: Images, positions: ClientSlices) -> None:
        super().__init__(positions.sizes)
        self._source, self._positions = source, positions

    def take(self, rows: slice | Positions) -> Images:
        """Take images, those in a row of the source as a view of it."""
        positions = self._positions.take(rows)
        first = int(positions[0]) if len(positions) else 0
        last = first + len(positions)
        chosen: slice | Positions = positions
        if torch.equal(positions, torch.arange(first, last)):
            chosen = slice(first, last)
        return Images(*(part[chosen] for part in self._source))


class Partition(Kind, table="data", selector="partition", shares_table=True):
    """Rule by which training images are dealt to clients."""

    partition: str = Field(
        "dirichlet", description="Partition of the training images among the clients."
    )

    def deal(
        self,
        y: Int[Tensor, " N"],
        clients: int,
        seed: int,
        *,
        holders: Int[Tensor, " N"] | None = None,
    ) -> ClientSlices:
        """Deal training images to clients.

        Args:
            y: Labels (N,).
            clients: Number of clients, in 1..N.
            seed: The same seed gives the same result.
            holders: Number of each image's holder (N,), where the source names holders.

        Returns:
            Each client's positions in y; every position goes to exactly one client.

        Raises:
            DataError: A client would have no image, or nobody names holders.
        """
        if not 1 <= clients <= len(y):
            raise DataError(
                f"clients is {clients}, must be in 1..{len(y)}, the number of training images; "
                "take fewer clients or raise data.train"
            )
        rng = np.random.default_rng(seed)
        order = rng.permutation(len(y))
        labels, stream = y.numpy()[order], np.random.default_rng(int(rng.integers(2**63)))
        positions, sizes = self.split(labels, clients, stream)
        return ClientSlices(torch.from_numpy(order[positions]), torch.from_numpy(sizes))

    def split(self, labels: NDArray[np.int64], clients: int, rng: np.random.Generator) -> Parts:
        """Split images in random order into the clients' parts."""
        raise NotImplementedError


class Iid(Partition):
    """Deal at random, evenly."""

    partition: Literal["iid"] = "iid"

    def split(self, labels: NDArray[np.int64], clients: int, rng: np.random.Generator) -> Parts:
        """Cut the random order into equal parts."""
        size, more = divmod(len(labels), clients)
        return np.arange(len(labels)), size + (np.arange(clients) < more)


class Dirichlet(Partition):
    """Deal each class in shares drawn from Dirichlet(alpha).

    Redrawn up to ten times until every client has an image.

    References:
        Yurochkin et al., ICML 2019, section 4.
    """

    partition: Literal["dirichlet"] = "dirichlet"
    alpha: Positive = Field(
        0.5, description="Dirichlet concentration; small values give each client few classes."
    )

    def split(self, labels: NDArray[np.int64], clients: int, rng: np.random.Generator) -> Parts:
        """Draw each class's shares; DataError where a client gets nothing."""
        members = [np.flatnonzero(labels == label) for label in np.unique(labels)]
        for _ in range(DRAWS):
            owners = []
            for positions in members:
                shares = rng.dirichlet(np.full(clients, self.alpha))
                cuts = (shares.cumsum() * len(positions)).astype(int)[:-1]
                counts = np.diff(cuts, prepend=0, append=len(positions))
                owners.append(np.repeat(np.arange(clients), counts))
            owner = np.concatenate(owners)
            sizes = np.bincount(owner, minlength=clients)
            if sizes.min() > 0:
                order = owner.argsort(kind="stable")
                return _shuffle_parts(np.concatenate(members)[order], sizes, rng), sizes
        raise DataError(
            f"data.alpha {self.alpha} left one of {clients} clients without any of {len(labels)} "
            f"images in each of {DRAWS} draws; take fewer clients or raise data.alpha"
        )


class Shards(Partition):
    """Cut the images, sorted by label, into two pieces a client, dealt at random.

    Where they do not come out even, the last is smaller and some clients get one less.

    References:
        McMahan et al., AISTATS 2017, section 3.
    """

    partition: Literal["shards"] = "shards"

    def split(self, labels: NDArray[np.int64], clients: int, rng: np.random.Generator) -> Parts:
        """Deal shards of the sorted images."""
        images = len(labels)
        size = math.ceil(images / (clients * SHARDS_A_CLIENT))
        if math.ceil(images / size) < clients:
            size = images // clients
        shards = math.ceil(images / size)
        start = rng.permutation(shards) * size
        length = np.minimum(size, images - start)
        fewest, more = divmod(shards, clients)
        owner = np.repeat(np.arange(clients), fewest + (np.arange(clients) < more))
        sizes = np.bincount(owner, weights=length, minlength=clients).astype(np.int64)
        places = np.repeat(start - (length.cumsum() - length), length) + np.arange(images)
        return labels.argsort(kind="stable")[_shuffle_parts(places, sizes, rng)], sizes


class Natural(Partition):
    """Give a client all images of one holder or, drawn at random, of several."""

    partition: Literal["natural"] = "natural"

    def deal(
        self,
        y: Int[Tensor, " N"],
        clients: int,
        seed: int,
        *,
        holders: Int[Tensor, " N"] | None = None,
    ) -> ClientSlices:
        """Deal holders to clients; see `Partition.deal`."""
        if holders is None:
            raise DataError(
                "data.partition is 'natural' and the source names no holders; give "
                "CLASS/HOLDER/IMAGE folders, set data.holder-column, or take another partition"
            )
        names, number = np.unique(holders.numpy(), return_inverse=True)
        if not 1 <= clients <= len(names):
            raise DataError(
                f"clients is {clients}, data.partition 'natural', must be in 1..{len(names)}, the "
                "number of holders; take fewer clients"
            )
        owner = (np.random.default_rng(seed).permutation(len(names)) % clients)[number]
        sizes = np.bincount(owner, minlength=clients)
        return ClientSlices(torch.from_numpy(owner.argsort(kind="stable")), torch.from_numpy(sizes))


def _shuffle_parts(
    positions: NDArray[np.int64], sizes: NDArray[np.int64], rng: np.random.Generator
) -> NDArray[np.int64]:
    """Shuffle each client's part in place, one after the other."""
    end = 0
    for size in sizes.tolist():
        rng.shuffle(positions[end : end + size])
        end += size
    return positions
