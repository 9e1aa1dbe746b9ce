"""Forms of the loss of clusters, and Gaussian mixtures."""

import pytest
import torch

from fedcel.errors import DivergedError
from fedcel.losses import ClientLoss
from fedcel.losses.cel.cluster import Cluster
from tests.fedcel.losses.cel.clusters import LABELS, POINTS, blobs, cluster, fresh
from tests.fedcel.losses.single import single, split_features

MODES = [
    cluster(2),
    cluster(2, original=True),
    single(Cluster(penalty="log", threshold=0.1, share="none", clusters=2)),
    *[
        single(Cluster(penalty="linear", clusters=2, clustering=kind), 3)
        for kind in ("diagonal", "full")
    ],
]


@pytest.mark.parametrize("mine", MODES)
def test_gradcheck(mine: ClientLoss) -> None:
    """Centres are constants, the assignment is locally constant."""
    z = torch.randn(20, 3, generator=fresh(4)).double()
    y = torch.arange(20) % 3
    state = mine.refresh(None, split_features(z, y), fresh())
    batch = (z[:7] + 0.1).requires_grad_()
    assert torch.autograd.gradcheck(lambda b: mine.loss(state, b, y[:7]).loss, batch)


@pytest.mark.parametrize("clustering", ["diagonal", "full"])
def test_mixtures_see_shapes(clustering: str) -> None:
    """Two long parallel groups, nearer to each other than long: K-means cannot part them."""
    z = torch.randn(200, 2, generator=fresh(2)).double() * torch.tensor([4.0, 0.1])
    z[:, 1] += torch.arange(200) % 2
    y = torch.zeros(200, dtype=torch.long)
    mine = single(Cluster(penalty="linear", share="none", clusters=2, clustering=clustering), 1)
    start = {
        "centres": torch.tensor([[[0, 0], [0, 1]]]).double(),
        "weights": torch.full((1, 2), 0.5).double(),
        "spreads": torch.zeros(1, 2).double(),
        "counts": torch.tensor([200]),
    }
    shape = torch.tensor([16.0, 0.01]).double()
    if clustering == "diagonal":
        start["variances"] = shape.expand(1, 2, 2)
    else:
        start["whitenings"] = shape.rsqrt().diag().expand(1, 2, 2, 2)
    state = mine.refresh(start, split_features(z, y), fresh())
    torch.testing.assert_close(
        state["centres"][0, :, 1], torch.tensor([0, 1]).double(), rtol=0, atol=0.1
    )
    hand = [z[k::2].var(0, correction=0).sum() for k in (0, 1)]
    torch.testing.assert_close(state["spreads"][0], torch.stack(hand), rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(mine.loss(state, z, y).loss, state["spreads"].mean())
    again = mine.refresh(state, split_features(z, y), fresh(9))
    torch.testing.assert_close(again["centres"], state["centres"], rtol=0, atol=1e-2)


def test_a_mixture_starts_from_clusters_without_covariances() -> None:
    """From the state of K-means, slots keep their order."""
    z, y = blobs()
    mine = cluster(3, classes=1)
    state = mine.refresh(None, split_features(z, y), fresh(1))
    for clustering in ("diagonal", "full"):
        mixture = single(Cluster(penalty="linear", clusters=3, clustering=clustering), 1)
        mixed = mixture.refresh(state, split_features(z, y), fresh(2))
        torch.testing.assert_close(mixed["centres"], state["centres"])


@pytest.mark.parametrize("mine", MODES)
def test_features_that_are_no_numbers(mine: ClientLoss) -> None:
    """Refused in the refresh and in the loss, with the class."""
    state = mine.refresh(None, split_features(POINTS, LABELS), fresh())
    for value in (torch.nan, torch.inf):
        broken = POINTS.clone()
        broken[5, 1] = value
        with pytest.raises(DivergedError, match="class 1.*lower local.rate"):
            mine.refresh(state, split_features(broken, LABELS), fresh())
        with pytest.raises(DivergedError, match="class 1.*lower local.rate"):
            mine.loss(state, broken, LABELS)
