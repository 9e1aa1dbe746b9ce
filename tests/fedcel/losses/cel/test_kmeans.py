"""K-means inside each class, as the clusters of a loss show it."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedcel.losses.cel import Cluster
from fedcel.losses.cel.kmeans import find_outliers
from tests.fedcel.losses.cel.clusters import fresh
from tests.fedcel.losses.single import single, split_features

RESEEDED = "reseeded-k-means"


def fit(clustering: str, z: Tensor, y: Tensor, *, clusters: int = 3, seed: int = 0) -> Tensor:
    """Return the mean squared distance to the centres in each class, after a cold start."""
    loss = single(Cluster(penalty="linear", clusters=clusters, clustering=clustering), 4)
    state = loss.refresh(None, split_features(z, y), fresh(seed))
    distance: Tensor = (state["weights"] * state["spreads"]).sum(1)
    return distance


def test_wide_data_are_found_through_the_projection() -> None:
    """Three groups among 300 values, as often as one asks."""
    centres = 4 * torch.randn(3, 300, generator=fresh(5))
    z = torch.randn(60, 300, generator=fresh(6)) + centres.repeat(20, 1)
    groups = torch.stack([z[k::3].var(0, correction=0).sum() for k in range(3)])
    for seed in range(20):
        found = fit("k-means", z, torch.zeros(60, dtype=torch.long), seed=seed)
        torch.testing.assert_close(found[0], groups.mean())


def test_outliers_are_seeded_anew() -> None:
    """Two centres stuck in one group while one serves two: with the factor all are found."""
    z = torch.tensor([-0.1] * 5 + [0.1] * 5 + [6.0] * 5 + [14.0] * 5).double()[:, None]
    y = torch.zeros(20, dtype=torch.long)
    stuck = {
        "centres": torch.tensor([[[-0.1], [0.1], [10.0]]]).double(),
        "weights": torch.full((1, 3), 1 / 3).double(),
        "spreads": torch.zeros(1, 3).double(),
        "counts": torch.tensor([20]),
    }
    for clustering, total in (("k-means", 160), (RESEEDED, 0.1)):
        loss = single(Cluster(penalty="linear", clusters=3, clustering=clustering), 1)
        state = loss.refresh(stuck, split_features(z, y), fresh())
        assert loss.loss(state, z, y).loss.item() == pytest.approx(total / 20, abs=1e-6)


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**31))
def test_reseeding_never_makes_it_worse(seed: int) -> None:
    """In any class, one of them absent."""
    y = torch.randint(0, 3, (40,), generator=fresh(seed))
    z = torch.randn(40, 3, generator=fresh(seed + 1)).double()
    assert (fit(RESEEDED, z, y, seed=seed) <= fit("k-means", z, y, seed=seed) + 1e-9).all()


def test_broad_is_against_the_lower_median_of_used_clusters() -> None:
    """Unused ones do not count; a class without any has none."""
    spreads = torch.tensor([[1.0, 2.0, 7.0, 90.0], [1.0, 4.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]])
    used = (spreads > 0) & (spreads < 90)
    assert find_outliers(spreads, used, 3.0).nonzero().tolist() == [[0, 2], [1, 1]]
    assert find_outliers(spreads, used, 3.5).nonzero().tolist() == [[1, 1]]
