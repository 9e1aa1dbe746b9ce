"""Centres learned by K-means, and the spread around them."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedcel.errors import DataError, SettingsError
from fedcel.losses.cel.cluster import Cluster
from fedcel.losses.cel.plain import Plain
from tests.fedcel.losses.cel.clusters import LABELS, POINTS, blobs, cluster, fresh
from tests.fedcel.losses.single import single, split_features


def test_worked_example() -> None:
    """Twelve points, two clusters: the optimal splits are 2 + 2, 1 + 3 and 1 + 3."""
    state = cluster(2).refresh(None, split_features(POINTS, LABELS), fresh())
    spreads, weights = state["spreads"].sort(1), state["weights"].sort(1)
    third = 0.0079167 / 0.75
    hand = torch.tensor([[0.003125, 0.00625], [0, third], [0, third]]).double()
    torch.testing.assert_close(spreads.values, hand, rtol=0, atol=1e-6)
    hand = torch.tensor([[0.5, 0.5], [0.25, 0.75], [0.25, 0.75]]).double()
    torch.testing.assert_close(weights.values, hand)
    for c, v in enumerate([0.0046875, 0.0079167, 0.0079167]):
        own = LABELS.eq(c)
        assert abs(cluster(2).loss(state, POINTS[own], LABELS[own]).loss.item() - v) < 1e-7
    for threshold, value in [(0.05, 0.0), (0.002, 1.20079)]:
        mine = single(Cluster(penalty="log", threshold=threshold, clusters=2))
        assert abs(mine.loss(state, POINTS, LABELS).loss.item() - value) < 1e-5


def test_absent_cluster() -> None:
    """A batch from one cluster: pi .75 renormalised gives its spread, the original .75 of it."""
    own = LABELS == 1
    z, y = POINTS[own], LABELS[own]
    state = cluster(2).refresh(None, split_features(z, y), fresh())
    far = int(state["weights"][1].argmin())
    kept = (z - state["centres"][1, far]).square().sum(1) > 1e-9
    assert int(kept.sum()) == 3
    loss = cluster(2).loss(state, z[kept], y[kept]).loss
    original = cluster(2, original=True).loss(state, z[kept], y[kept]).loss
    assert abs(loss.item() - 0.0079167 / 0.75) < 1e-6
    assert abs(original.item() - 0.0079167) < 1e-6


def test_a_class_the_client_never_had_takes_no_share() -> None:
    """Examples of an unknown class change neither the loss nor the other classes' shares."""
    state = cluster(2).refresh(None, split_features(POINTS[:8], LABELS[:8]), fresh())
    known = cluster(2).loss(state, POINTS[:8], LABELS[:8])
    term = cluster(2).loss(state, POINTS, LABELS)
    torch.testing.assert_close(term.loss, known.loss)
    torch.testing.assert_close(term.metrics["cluster-spread"], known.metrics["cluster-spread"])


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**32 - 1), st.integers(2, 30), st.integers(1, 5))
def test_one_cluster_is_plain(seed: int, count: int, features: int) -> None:
    """One centre at the class mean: the same loss and gradient on the state's own batch."""
    z = torch.randn(count, features, generator=fresh(seed)).double().requires_grad_()
    y = torch.arange(count) % 2
    one, plain = cluster(1), single(Plain(penalty="linear", share="none"), 3)
    state = one.refresh(None, split_features(z, y), fresh())
    spread = [plain.loss({}, z[y == c], y[y == c]).loss * (y == c).sum() / count for c in (0, 1)]
    loss = one.loss(state, z, y).loss
    torch.testing.assert_close(loss, spread[0] + spread[1])
    ours, theirs = (torch.autograd.grad(v, z)[0] for v in (loss, spread[0] + spread[1]))
    torch.testing.assert_close(ours, theirs)


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**32 - 1), st.lists(st.integers(0, 3), min_size=1, max_size=40))
def test_state_is_a_fixed_point(seed: int, labels: list[int]) -> None:
    """Centres are means of what is nearest to them; weights, spreads and the loss agree."""
    y = torch.tensor(labels)
    z = torch.randn(len(labels), 2, generator=fresh(seed)).double()
    mine = cluster(3, classes=4)
    state = mine.refresh(None, split_features(z, y), fresh(seed))
    total = 0.0
    for c in range(4):
        own, weights = z[y == c], state["weights"][c]
        assert int((weights > 0).sum()) == min(3, len(own))
        if not len(own):
            continue
        nearest = torch.cdist(own, state["centres"][c][weights > 0]).argmin(1)
        for k, slot in enumerate(weights.nonzero()[:, 0]):
            held = own[nearest == k]
            gap = (held - held.mean(0)).square().sum(1)
            torch.testing.assert_close(state["centres"][c, slot], held.mean(0))
            torch.testing.assert_close(state["spreads"][c, slot], gap.mean())
            assert abs(weights[slot] - len(held) / len(own)) < 1e-12
            total += float(gap.sum()) / len(labels)
    assert abs(float(mine.loss(state, z, y).loss) - total) < 1e-9, "law of total variance"


def test_finds_what_is_there_and_stays() -> None:
    """Far groups are found; from a warm start the slots keep their order while features move."""
    z, y = blobs()
    mine = cluster(3, classes=1)
    state = mine.refresh(None, split_features(z, y), fresh(1))
    assert float(state["spreads"].max()) < 0.1
    moved = mine.refresh(state, split_features(z + 0.5, y), fresh(2))
    torch.testing.assert_close(moved["centres"], state["centres"] + 0.5)


def test_warm_start_refills_an_empty_cluster() -> None:
    """A slot that lost its members is seeded anew, not left dead."""
    z, y = blobs()
    mine = cluster(3, classes=1)
    state = mine.refresh(None, split_features(z, y), fresh(1))
    dead = {**state, "weights": state["weights"] * torch.tensor([1, 0, 1])}
    assert float(mine.refresh(dead, split_features(z, y), fresh(2))["spreads"].max()) < 0.1


@pytest.mark.parametrize(
    ("clusters", "held", "used"), [(0, 3, 1), (0, 9, 2), (0, 90, 5), (8, 3, 3), (8, 90, 8)]
)
def test_number_of_clusters(clusters: int, held: int, used: int) -> None:
    """A quarter of n_c from 1 to 5 by default, an explicit number as it is, never above n_c."""
    z = torch.randn(held, 3, generator=fresh(3))
    state = cluster(clusters).refresh(
        None, split_features(z, torch.ones(held, dtype=torch.long)), fresh()
    )
    assert (state["weights"] > 0).sum(1).tolist() == [0, used, 0]


def test_equal_points_need_one_cluster() -> None:
    """Duplicates leave the other clusters empty, with weight 0 and no NaN."""
    state = cluster(3).refresh(
        None, split_features(torch.ones(6, 2), torch.zeros(6, dtype=torch.long)), fresh()
    )
    assert (state["weights"] > 0).sum().item() == 1
    assert not state["spreads"].any()
    assert all(tensor.isfinite().all() for tensor in state.values())


def test_precision_far_from_the_origin() -> None:
    """In float32, groups .1 apart at 1000 are told apart, their spread is that of differences."""
    z = torch.tensor([[0.0], [1 / 64], [0.125], [0.125 + 1 / 64]]).repeat(4, 1) + 1000
    y, mine = torch.zeros(16, dtype=torch.long), cluster(2, classes=1)
    state = mine.refresh(None, split_features(z, y), fresh())
    assert mine.loss(state, z, y).loss.item() == pytest.approx(1 / 128**2, rel=0.02)


def test_spread_between_clusters_is_reported() -> None:
    """`spread` is the total; `cluster-spread` leaves out the corners' distances."""
    z, y = blobs()
    state = cluster(3, classes=1).refresh(None, split_features(z, y), fresh(1))
    metrics = cluster(3, classes=1).loss(state, z, y).metrics
    torch.testing.assert_close(metrics["spread"], z.var(0, correction=0).sum())
    assert metrics["cluster-spread"] < 0.1


def test_refusals() -> None:
    """No examples, or a state from other settings."""
    with pytest.raises(DataError, match="0 examples"):
        cluster(2).refresh(
            None, split_features(torch.zeros(0, 2), torch.zeros(0, dtype=torch.long)), fresh()
        )
    state = cluster(2).refresh(None, split_features(POINTS, LABELS), fresh())
    with pytest.raises(SettingsError, match=r"\(3, 2, 2\), must be \(3, 4, 2\)"):
        cluster(4).refresh(state, split_features(POINTS, LABELS), fresh())
    with pytest.raises(SettingsError, match=r"\(3, 2, 2\), must be \(3, 2, 5\)"):
        cluster(2).refresh(state, split_features(torch.zeros(12, 5), LABELS), fresh())
    with pytest.raises(DataError, match="must be in 0..2"):
        cluster(2).refresh(state, split_features(POINTS, LABELS + 1), fresh())
    wide = single(Cluster(penalty="linear", share="none", clusters=3, clustering="full"), 3)
    with pytest.raises(SettingsError, match="150994944 values, must be at most 134217728"):
        wide.refresh(None, split_features(torch.zeros(3, 4096), torch.arange(3)), fresh())
