"""K-means inside each class."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedcel.losses.cel.kmeans import (
    ClusteringProblem,
    LastClusters,
    centre_distances,
    centre_scores,
    find_clusters,
    find_outliers,
    make_clusters,
    run_lloyd,
    seed_centres,
)

every = torch.ones(1, 3, dtype=torch.bool)


def fresh(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def drawn(seed: int, count: int = 40) -> tuple[Tensor, Tensor]:
    """Return normal data (count, 3) of 4 classes, one of them absent, sorted by class."""
    y = torch.randint(0, 3, (count,), generator=fresh(seed)).sort().values
    return torch.randn(count, 3, generator=fresh(seed + 1)).double(), y


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**31))
def test_scores_are_distances_less_the_own_norm(seed: int) -> None:
    """And infinite where a centre is not usable."""
    z, y = drawn(seed)
    centres = torch.randn(4, 5, 3, generator=fresh(seed)).double()
    usable = torch.rand(4, 5, generator=fresh(seed)) > 0.5
    expected = torch.where(usable[y], centre_distances(z, y, centres), torch.inf)
    torch.testing.assert_close(
        centre_scores(z, y, centres, usable) + z.square().sum(1, True), expected
    )


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**31))
def test_seeds_are_different_members_of_the_class(seed: int) -> None:
    """Kept centres stay, wanted slots are filled, others are left."""
    z, y = drawn(seed)
    wanted = torch.tensor([True, True, True, False]).repeat(4, 1)
    wanted[:, 2] &= y.bincount(minlength=4) > 3
    kept = torch.zeros_like(wanted)
    kept[1, 0] = wanted[1, 0]
    start = torch.full((4, 4, 3), 7.0).double()
    seeds = seed_centres(ClusteringProblem(z, y, wanted, [fresh(seed)]), start, kept)
    assert seeds[1, 0].tolist() == seeds[:, 3].flatten()[:3].tolist() == [7, 7, 7]
    for c in y.unique().tolist():
        new = seeds[c][wanted[c] & ~kept[c]]
        gap = torch.cdist(new, z[y == c])
        assert not gap.amin(1).any()
        assert len(new.unique(dim=0)) == len(new)


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**31))
def test_lloyd_never_gets_worse(seed: int) -> None:
    """Each class's total distance is at most that of its start, and its centres are means."""
    z, y = drawn(seed)
    usable = torch.ones(4, 2, dtype=torch.bool)
    start = torch.randn(4, 2, 3, generator=fresh(seed)).double()
    clusters = run_lloyd(ClusteringProblem(z, y, usable, [fresh()]), start)
    before = y.bincount(centre_distances(z, y, start).amin(1))
    assert (y.bincount(clusters.distances) <= before + 1e-9).all()
    for s in clusters.slots.unique().tolist():
        torch.testing.assert_close(
            clusters.centres.flatten(0, 1)[s], z[clusters.slots == s].mean(0)
        )


def test_wide_data_are_found_through_the_projection() -> None:
    """Three groups among 300 values, as often as one asks."""
    centres = 4 * torch.randn(3, 300, generator=fresh(5))
    z = torch.randn(60, 300, generator=fresh(6)) + centres.repeat(20, 1)
    z -= z.mean(0)
    y = torch.zeros(60, dtype=torch.long)
    for seed in range(20):
        clusters = find_clusters(ClusteringProblem(z, y, every, [fresh(seed)]), None, None)
        assert len(set(clusters.slots[:3].tolist())) == 3
        assert torch.equal(clusters.slots, clusters.slots[:3].repeat(20))


def test_outliers_are_seeded_anew() -> None:
    """Two centres stuck in one group while one serves two: with the factor all are found."""
    z = torch.tensor([-0.1] * 5 + [0.1] * 5 + [6.0] * 5 + [14.0] * 5).double()[:, None]
    y = torch.zeros(20, dtype=torch.long)
    last = LastClusters(torch.tensor([[[-0.1], [0.1], [10.0]]]).double(), every, {})
    stuck = find_clusters(ClusteringProblem(z, y, every, [fresh()]), last, None)
    free = find_clusters(ClusteringProblem(z, y, every, [fresh()]), last, 3.0)
    assert abs(float(stuck.distances.sum()) - 160) < 1e-6
    assert abs(float(free.distances.sum()) - 0.1) < 1e-6


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**31), st.floats(0.5, 3))
def test_outliers_never_make_it_worse(seed: int, factor: float) -> None:
    z, y = drawn(seed)
    wanted = torch.ones(4, 3, dtype=torch.bool) & (y.bincount(minlength=4) > 2)[:, None]
    with_, without = (
        find_clusters(ClusteringProblem(z, y, wanted, [fresh(seed)]), None, outlier)
        for outlier in (factor, None)
    )
    assert (y.bincount(with_.distances) <= y.bincount(without.distances) + 1e-9).all()


def test_broad_is_against_the_lower_median_of_used_clusters() -> None:
    """Unused ones do not count; a class without any has none."""
    spreads = torch.tensor([[1.0, 2.0, 7.0, 90.0], [1.0, 4.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]])
    used = (spreads > 0) & (spreads < 90)
    assert find_outliers(spreads, used, 3.0).nonzero().tolist() == [[0, 2], [1, 1]]
    assert find_outliers(spreads, used, 3.5).nonzero().tolist() == [[1, 1]]


def test_around_measures_differences() -> None:
    """Far from the origin in float32 nothing is lost."""
    z = torch.tensor([[1e4], [1e4 + 0.125]])
    clusters = make_clusters(z, torch.tensor([0, 0]), torch.tensor([[[1e4]]]))
    assert clusters.distances.tolist() == [0, 0.015625]
