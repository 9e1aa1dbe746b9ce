"""Losses against loops over classes, a fit against scikit-learn: `python -m tests.bench.losses`.

Prints a table: forward and backward pass of a loss, all classes at once, beside the same as one
would write it first; a refresh of the cluster loss beside K-means run class by class on all the
data. One thread on both sides.
"""

from collections.abc import Callable
from functools import partial

import torch
from sklearn.cluster import KMeans
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]
from torch import Tensor
from torch.nn.functional import layer_norm

from fedcel.losses import ClientLoss
from fedcel.losses.cel import Cluster, Gated, MutualInformation
from fedcel.losses.cel.conditional_entropy import channel_penalty
from fedcel.losses.protocol import FeatureBatches, State
from tests.bench.ratios import line
from tests.fedcel.losses.single import single, split_features

CLASSES, CLUSTERS, BATCH, FEATURES, SIGMA = 10, 5, 128, 4096, 0.3
EXAMPLES, PIECE = 50_000, 1000
LOOP = "a loop over the classes"

Data = tuple[Tensor, Tensor]
Work = Callable[[], None]


def main() -> None:
    """Time every pair and print the table, then how good the found centres are."""
    torch.set_num_threads(1)
    print("| what | against | ratio | quartiles | seconds |\n|---|---|---|---|---|")
    stream = torch.Generator().manual_seed(0)
    z, y = torch.rand(BATCH, FEATURES, generator=stream), torch.arange(BATCH) % CLASSES
    gated = single(Gated(), CLASSES, FEATURES, SIGMA)
    state = gated.refresh(None, split_features(z, y), stream)
    information = single(MutualInformation(), CLASSES, FEATURES, SIGMA)
    line("gated", LOOP, slope(gated, state, z, y), gated_loop(state["theta"], z, y))
    line("mutual information", LOOP, slope(information, {}, z, y), information_loop(z, y))
    with threadpool_limits(1):
        data = draw_clusters(EXAMPLES)
        line("cluster, K 5", LOOP, *compare_cluster(data))
        codes = split_features(*data, PIECE)
        ours, theirs = partial(refresh_centres, codes, 0), partial(fit_centres, *data, 0)
        line("refresh of 50 000 x 4096", "scikit-learn's KMeans by class", ours, theirs, pairs=3)
        for seed in range(3):
            found = inertia(*data, refresh_centres(codes, seed))
            share = found / inertia(*data, fit_centres(*data, seed))
            print(f"inertia on all data, seed {seed}: {share:.4f} of scikit-learn's")


def slope(mine: ClientLoss, state: State, z: Tensor, y: Tensor) -> Work:
    """Return one loss and its gradient, at the attention's weights too."""
    leaf = z.clone().requires_grad_()

    def work() -> None:
        leaf.grad = None
        for tensor in state.values():
            tensor.grad = None
        torch.autograd.backward(mine.loss(state, leaf, y, measure=False).loss)

    return work


def looped(
    of_class: Callable[[Tensor], Tensor], z: Tensor, y: Tensor, learned: list[Tensor]
) -> Work:
    """Return the batch-share mean over classes of what `of_class` makes of each, and gradients."""
    leaf = z.clone().requires_grad_()

    def work() -> None:
        leaf.grad = None
        for tensor in learned:
            tensor.grad = None
        terms, total = [], 0
        for c in y.unique():
            own = leaf[y == c]
            if len(own) > 1:
                terms.append(len(own) * of_class(own))
                total += len(own)
        torch.autograd.backward(torch.stack(terms).sum() / total)

    return work


def gated_loop(theta: Tensor, z: Tensor, y: Tensor) -> Work:
    """Return the attention as its formula reads: V, U and w apart, one class at a time."""
    features = z.shape[1]
    hidden = theta.numel() // (2 * features + 1)
    value, gate, last = torch.split(theta.detach(), [hidden * features] * 2 + [hidden])
    weights = [value.view(hidden, -1).clone(), gate.view(hidden, -1).clone(), last.clone()]
    for weight in weights:
        weight.requires_grad_()
    v, u, w = weights

    def of_class(own: Tensor) -> Tensor:
        n = layer_norm(own, own.shape[1:])
        alpha = (((n @ v.T).tanh() * (n @ u.T).sigmoid()) @ w).softmax(0)
        gap = own - (alpha[:, None] * own).sum(0)
        spread = (alpha * gap.square().sum(1)).sum()
        return channel_penalty(spread, features=features, sigma=SIGMA)

    return looped(of_class, z, y, weights)


def information_loop(z: Tensor, y: Tensor) -> Work:
    """Return the upper bound from all pairs' differences, one class at a time."""

    def of_class(own: Tensor) -> Tensor:
        gap = (own[:, None] - own).square().sum(2) / (2 * SIGMA**2)
        return -gap.neg().exp().mean(1).log().mean()

    return looped(of_class, z, y, [])


def build_cluster() -> Cluster:
    """Return the loss whose value is the spread itself."""
    return single(Cluster(penalty="linear", clusters=CLUSTERS), CLASSES)


def draw_clusters(count: int, apart: float = 0.5) -> Data:
    """Return smashed data (count, D) around 5 centres in each of 10 classes, made in pieces."""
    stream = torch.Generator().manual_seed(0)
    centres = apart * torch.randn(CLASSES * CLUSTERS, FEATURES, generator=stream)
    slot = torch.randint(CLASSES * CLUSTERS, (count,), generator=stream)
    z = torch.empty(count, FEATURES)
    for some, own in zip(torch.split(z, PIECE), torch.split(slot, PIECE), strict=True):
        some.normal_(generator=stream).add_(centres[own])
    return z, slot // CLUSTERS


def compare_cluster(data: Data) -> tuple[Work, Work]:
    """Return forward and backward pass of one batch, and the same by a loop over classes."""
    few = data[0][:2000], data[1][:2000]
    mine, z, y = build_cluster(), few[0][:BATCH].clone().requires_grad_(), few[1][:BATCH]
    state = mine.refresh(None, split_features(*few), torch.Generator().manual_seed(1))

    def ours() -> None:
        torch.autograd.grad(mine.loss(state, z, y, measure=False).loss, z)

    def theirs() -> None:
        torch.autograd.grad(cluster_loop(state, z, y), z)

    torch.testing.assert_close(mine.loss(state, z, y).loss, cluster_loop(state, z, y))
    return ours, theirs


def cluster_loop(state: State, z: Tensor, y: Tensor) -> Tensor:
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


def refresh_centres(codes: FeatureBatches, seed: int) -> Tensor:
    """Return the centres that a client finds."""
    return build_cluster().refresh(None, codes, torch.Generator().manual_seed(seed))["centres"]


def fit_centres(z: Tensor, y: Tensor, seed: int) -> Tensor:
    """Return scikit-learn's centres."""
    found = [
        KMeans(CLUSTERS, n_init=1, random_state=seed).fit(z[y == c].numpy()).cluster_centers_
        for c in range(CLASSES)
    ]
    return torch.stack([torch.from_numpy(centres) for centres in found])


def inertia(z: Tensor, y: Tensor, centres: Tensor) -> float:
    """Return the sum over all examples of |z - nearest own centre|^2, a piece at a time."""
    total = 0.0
    for c in range(CLASSES):
        for some in torch.split(z[y == c], PIECE):
            nearest = torch.cdist(some, centres[c]).argmin(1)
            total += (some - centres[c][nearest]).square().sum().item()
    return total


if __name__ == "__main__":
    main()
