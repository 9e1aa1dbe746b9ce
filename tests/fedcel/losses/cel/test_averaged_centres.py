"""Centres averaged over clients against closed forms, and what the server refuses."""

import re
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedcel.errors import SettingsError
from fedcel.losses.cel.averaged_centres import (
    AveragedCentres,
    CentreStatistics,
    SharedCentres,
    client_spread,
    find_statistics_fault,
    init_centres,
    merge_centres,
    summarise_centres,
)
from fedcel.losses.cel.cluster import Cluster
from fedcel.losses.cel.protocol import ConditionalEntropy, split_features
from fedcel.losses.cel.spread_penalties import linear_penalty
from fedcel.settings import CelSettings
from fedcel.testing.cel import CLASSES, FEATURES, CELContract, make_features

INNER = Cluster(linear_penalty, "batch-share", CLASSES, clusters=2)


def around(seed: int, known: int = CLASSES) -> SharedCentres:
    """Return two random centres for each of the first `known` classes."""
    stream = torch.Generator().manual_seed(seed)
    weights = torch.full((CLASSES, 2), 0.5)
    weights[known:] = 0
    return SharedCentres(torch.randn(CLASSES, 2, FEATURES, generator=stream), weights)


class TestAveraged(CELContract):
    """A cluster loss whose centres are held; they do not move with the features."""

    shift_invariant = False

    def build(self) -> ConditionalEntropy:
        """Return the loss around centres of its own seed."""
        return AveragedCentres(INNER, around(0))

    def test_equal_features_cost_nothing(self) -> None:
        """Features that lie on held centres cost nothing; equal ones elsewhere do."""
        _, y = make_features(12)
        z = around(0).centres[y, 1]
        assert self.evaluate(self.init_state(z, y), z, y)[0] < 1e-6
        assert self.evaluate(self.init_state(z, y), z + 0.3, y)[0] > 0.01


def test_features_of_another_size_than_the_shared_centres_are_refused() -> None:
    """A changed net.features, in a run that goes on."""
    z, y = torch.zeros(6, FEATURES + 1), torch.arange(6) % CLASSES
    with pytest.raises(SettingsError, match="averaged centres have 4"):
        AveragedCentres(INNER, around(0)).refresh(None, split_features(z, y), torch.Generator())


def told(
    centres: list[list[float]], weights: list[list[float]], counts: list[int]
) -> CentreStatistics:
    """Return one client's statistics of one-dimensional features, a row a class."""
    return CentreStatistics(
        torch.tensor(centres)[..., None], torch.tensor(weights), torch.tensor(counts)
    )


def test_centres_are_held_weights_and_spreads_are_the_clients_own() -> None:
    """Features 0, 1, 9 around 0 and 10: weights 2/3 and 1/3, spreads 1/2 and 1."""
    z, y = torch.tensor([[0.0], [1.0], [9.0]]), torch.zeros(3, dtype=torch.long)
    shared = SharedCentres(torch.tensor([[[0.0], [10.0]]]), torch.tensor([[0.5, 0.5]]))
    loss = AveragedCentres(Cluster(linear_penalty, "batch-share", 1, clusters=2), shared)
    state = loss.refresh(None, split_features(z, y, 2), torch.Generator())
    assert torch.equal(state["centres"], shared.centres)
    torch.testing.assert_close(state["weights"], torch.tensor([[2 / 3, 1 / 3]]))
    torch.testing.assert_close(state["spreads"], torch.tensor([[0.5, 1.0]]))
    assert state["counts"].tolist() == [3]
    assert loss.loss(state, z, y).loss.item() == pytest.approx(2 / 3)  # (0 + 1 + 1) / 3


def test_a_class_that_nobody_told_keeps_the_clients_own_clusters() -> None:
    """Class 2 is as the inner loss alone has it, the others are around the shared centres."""
    z, y = make_features(4)
    shared = around(1, known=2)
    state = AveragedCentres(INNER, shared).refresh(
        None, split_features(z, y), torch.Generator().manual_seed(3)
    )
    own = INNER.refresh(None, split_features(z, y), torch.Generator().manual_seed(3))
    assert torch.equal(state["centres"][:2], shared.centres[:2])
    for name in ("centres", "weights", "spreads"):
        assert torch.equal(state[name][2], own[name][2]), name


def test_a_client_tells_the_means_of_its_members() -> None:
    """Means of its own clusters, whatever centres they were assigned by."""
    z, y = make_features(5)
    state = AveragedCentres(INNER, around(2)).refresh(None, split_features(z, y), torch.Generator())
    statistics = summarise_centres(state, split_features(z, y, 5))
    for label in range(CLASSES):
        own = (statistics.weights[label][:, None] * statistics.centres[label]).sum(0)
        torch.testing.assert_close(own, z[y == label].mean(0))
    assert statistics.counts.tolist() == y.bincount(minlength=CLASSES).tolist()
    arrays = [tensor.numpy() for tensor in statistics]
    assert find_statistics_fault(arrays, around(2), len(y), bounded=False) is None


def test_the_merge_by_hand() -> None:
    """Centres 0 (3 images), 1 (1) and 10 (4): clusters at 1/4 and 10, half the weight each."""
    one, two = told([[0.0, 10.0]], [[0.75, 0.25]], [4]), told([[1.0, 10.0]], [[0.25, 0.75]], [4])
    none = SharedCentres(torch.zeros(1, 2, 1), torch.zeros(1, 2))
    merged = merge_centres(none, [one, two], 2)
    order = merged.centres[0, :, 0].argsort()
    assert merged.centres[0, order, 0].tolist() == [0.25, 10.0]
    assert merged.weights[0].tolist() == [0.5, 0.5]


def test_with_one_cluster_the_merge_is_the_mean_of_all_images() -> None:
    """sum_k n_k mu_k / sum_k n_k; a class that nobody told stays."""
    clients = [
        told([[1.0], [0.0]], [[1.0], [0.0]], [1, 0]),
        told([[4.0], [0.0]], [[1], [0]], [2, 0]),
    ]
    last = SharedCentres(torch.full((2, 1, 1), 7.0), torch.ones(2, 1))
    merged = merge_centres(last, clients, 1)
    assert merged.centres.flatten().tolist() == [3.0, 7.0]
    assert merged.weights.flatten().tolist() == [1.0, 1.0]


def test_a_centre_that_nobody_is_near_is_seeded_anew() -> None:
    """The last centre at 100 serves no client; the farthest of the clients' takes its place."""
    last = SharedCentres(torch.tensor([[[0.0], [100.0]]]), torch.tensor([[0.5, 0.5]]))
    merged = merge_centres(last, [told([[0.0, 8.0]], [[0.5, 0.5]], [4])], 2)
    assert sorted(merged.centres.flatten().tolist()) == [0.0, 8.0]


@pytest.mark.parametrize(("images", "used"), [(3, 1), (8, 2), (100, 5)])
def test_without_a_number_a_quarter_of_the_images_decides(images: int, used: int) -> None:
    """At least one cluster and at most five, as for a client's own."""
    share = [[1 / 5] * 5]
    none = SharedCentres(torch.zeros(1, 5, 1), torch.zeros(1, 5))
    merged = merge_centres(none, [told([[0.0, 1.0, 3.0, 7.0, 15.0]], share, [images])], 0)
    assert int((merged.weights > 0).sum()) == used
    assert merged.weights.sum().item() == pytest.approx(1)


@given(st.integers(0, 2**32 - 1))
def test_the_clients_of_one_law_agree_on_its_clusters(seed: int) -> None:
    """Three blobs of width .01: the merged centres are theirs, started cold or warm."""
    stream = torch.Generator().manual_seed(seed)
    true = torch.tensor([[0.0, 0.0], [5.0, 0.0], [0.0, 5.0]])
    clients = [
        CentreStatistics(
            (true + 0.01 * torch.randn(3, 2, generator=stream))[None],
            torch.full((1, 3), 1 / 3),
            torch.tensor([12]),
        )
        for _ in range(4)
    ]
    last = SharedCentres(torch.zeros(1, 3, 2), torch.zeros(1, 3))
    for _ in range(2):
        last = merge_centres(last, clients, 3)
        gaps = torch.cdist(true, last.centres[0]).amin(1)
        assert gaps.max() < 0.1
    back = merge_centres(SharedCentres(torch.zeros(1, 3, 2), torch.zeros(1, 3)), clients[::-1], 3)
    assert torch.cdist(last.centres[0], back.centres[0]).amin(1).max() < 1e-5


def test_the_spread_between_clients_by_hand() -> None:
    """Means 0 (1 image) and 4 (3 images), pooled 3: (9 + 3)/4 = 3; a class of one client adds 0."""
    one = told([[0.0, 9.0], [0.0, 0.0]], [[1.0, 0.0], [0.0, 0.0]], [1, 0])
    two = told([[3.0, 6.0], [5.0, 0.0]], [[2 / 3, 1 / 3], [1.0, 0.0]], [3, 4])
    assert client_spread([one]) == 0
    assert client_spread([one, two]) == pytest.approx((4 * 3 + 4 * 0) / 8)


SOUND: dict[str, Any] = {
    "centres": np.full((2, 1, 2), 0.5, np.float32),
    "weights": np.array([[1.0], [0.0]], np.float32),
    "counts": np.array([3, 0]),
}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, None),
        ({"counts": np.array([3])}, "shapes"),
        ({"centres": np.full((2, 1, 2), 0.5)}, "dtypes"),
        ({"centres": np.full((2, 1, 2), np.nan, np.float32)}, "NaN or infinity"),
        ({"centres": np.full((2, 1, 2), 1.1, np.float32)}, "mean square is 1.21"),
        ({"weights": np.array([[np.inf], [0]], np.float32)}, "NaN or infinity"),
        ({"weights": np.array([[1.5], [0]], np.float32)}, r"must be in \[0, 1\]"),
        ({"weights": np.array([[-0.5], [0]], np.float32)}, r"must be in \[0, 1\]"),
        ({"weights": np.array([[0.5], [0]], np.float32)}, "sum to"),
        ({"weights": np.array([[1.0], [1.0]], np.float32)}, "sum to"),
        ({"counts": np.array([2, 0])}, "3 together"),
        ({"counts": np.array([4, -1])}, "0 or more"),
        ({"counts": np.array([2**62, 2**62])}, "3 together"),
    ],
    ids=str,
)
def test_what_the_server_refuses(change: dict[str, Any], reason: str | None) -> None:
    """Each with its reason; a sound one passes."""
    shared = SharedCentres(torch.zeros(2, 1, 2), torch.zeros(2, 1))
    fault = find_statistics_fault(list((SOUND | change).values()), shared, 3, bounded=True)
    if reason is None:
        assert fault is None
    else:
        assert fault is not None
        assert re.search(reason, fault)


def test_a_user_without_averaging_shares_nothing() -> None:
    """The shape is known before any client is asked: (C, K, D), K as for a client's own."""
    assert init_centres(CelSettings(kind="cluster"), 4, 3) is None
    assert init_centres(CelSettings(kind="none", centres="averaged"), 4, 3) is None
    centres = init_centres(CelSettings(kind="cluster", clusters=0, centres="averaged"), 4, 3)
    assert centres is not None
    assert (centres.centres.shape, centres.weights.any().item()) == ((3, 5, 4), False)
