"""Ratios of the cluster loss and its fit: `python -m tests.bench.clusters` prints a table.

The loss is compared with a plain loop over classes, the fit with scikit-learn's K-means run class
by class on all the data. One thread on both sides.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from sklearn.cluster import KMeans
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]
from torch import Tensor

from fedcel.losses.cel.cluster import Cluster
from fedcel.losses.protocol import FeatureBatches, State
from tests.bench.ratios import line
from tests.fedcel.losses.single import single, split_features

CLASSES, CLUSTERS, FEATURES = 10, 5, 4096
BATCH, EXAMPLES, PIECE = 128, 50_000, 1000

Work = Callable[[], None]


class Pair(NamedTuple):
    """What is timed, against what, and both as callables."""

    what: str
    against: str
    ours: Work
    theirs: Work


def main() -> None:
    """Time every pair and print the table, then how good the found centres are."""
    torch.set_num_threads(1)
    print("| what | against | ratio | quartiles | seconds |\n|---|---|---|---|---|")
    with threadpool_limits(1):
        line(*loss())
        data = clustered(EXAMPLES)
        line(*fit(data), pairs=3)
        for seed in range(3):
            ours, theirs = inertias(data, seed)
            print(f"inertia on all data, seed {seed}: {ours / theirs:.4f} of scikit-learn's")


def measured() -> Cluster:
    """Return the loss whose value is the spread itself."""
    return single(Cluster(penalty="linear", clusters=CLUSTERS), CLASSES)


def clustered(count: int, apart: float = 0.5) -> tuple[Tensor, Tensor]:
    """Return smashed data (count, D) around 5 centres in each of 10 classes, made in pieces."""
    stream = torch.Generator().manual_seed(0)
    centres = apart * torch.randn(CLASSES * CLUSTERS, FEATURES, generator=stream)
    slot = torch.randint(CLASSES * CLUSTERS, (count,), generator=stream)
    z = torch.empty(count, FEATURES)
    for some, own in zip(torch.split(z, PIECE), torch.split(slot, PIECE), strict=True):
        some.normal_(generator=stream).add_(centres[own])
    return z, slot // CLUSTERS


def loss() -> Pair:
    """Return forward and backward pass of one batch, and the same by a loop over classes."""
    data = clustered(2000)
    mine, z, y = measured(), data[0][:BATCH].clone().requires_grad_(), data[1][:BATCH]
    state = mine.refresh(None, split_features(*data), torch.Generator().manual_seed(1))

    def ours() -> None:
        torch.autograd.grad(mine.loss(state, z, y, measure=False).loss, z)

    def theirs() -> None:
        torch.autograd.grad(looped(state, z, y), z)

    torch.testing.assert_close(mine.loss(state, z, y).loss, looped(state, z, y))
    return Pair("cluster loss, B 128, D 4096, C 10, K 5", "a loop over classes", ours, theirs)


def looped(state: State, z: Tensor, y: Tensor) -> Tensor:
    """Return the renormalised linear loss as one would write it first."""
    total = z.new_zeros(())
    for c in range(CLASSES):
        own = z[y == c]
        if not len(own):
            continue
        distance = (own[:, None] - state["centres"][c]).square().sum(2)
        nearest = distance.argmin(1)
        spread, present = z.new_zeros(()), z.new_zeros(())
        for k in range(CLUSTERS):
            held = nearest == k
            if held.any():
                weight = state["weights"][c, k]
                spread = spread + weight * distance[held, k].mean()
                present = present + weight
        total = total + len(own) / len(z) * spread / present
    return total


def fit(data: tuple[Tensor, Tensor]) -> Pair:
    """Return a first refresh, and scikit-learn's K-means class by class."""
    z, y = data
    codes = split_features(z, y, PIECE)

    def ours() -> None:
        refreshed(codes, 0)

    def theirs() -> None:
        fitted(z, y, 0)

    return Pair("refresh of 50 000 x 4096", "scikit-learn's KMeans by class", ours, theirs)


def refreshed(codes: FeatureBatches, seed: int) -> Tensor:
    """Return the centres that a client finds."""
    return measured().refresh(None, codes, torch.Generator().manual_seed(seed))["centres"]


def fitted(z: Tensor, y: Tensor, seed: int) -> Tensor:
    """Return scikit-learn's centres."""
    found = [
        KMeans(CLUSTERS, n_init=1, random_state=seed).fit(z[y == c].numpy()).cluster_centers_
        for c in range(CLASSES)
    ]
    return torch.stack([torch.from_numpy(centres) for centres in found])


def inertias(data: tuple[Tensor, Tensor], seed: int) -> tuple[float, float]:
    """Return the sum of |z - nearest own centre|^2 under both sides' centres."""
    z, y = data
    ours, theirs = refreshed(split_features(z, y, PIECE), seed), fitted(z, y, seed)
    return inertia(z, y, ours), inertia(z, y, theirs)


def inertia(z: Tensor, y: Tensor, centres: Tensor) -> float:
    """Return the sum over all examples, a piece at a time."""
    total = 0.0
    for c in range(CLASSES):
        for some in torch.split(z[y == c], PIECE):
            nearest = torch.cdist(some, centres[c]).argmin(1)
            total += (some - centres[c][nearest]).square().sum().item()
    return total


if __name__ == "__main__":
    main()
