"""Forms of the loss of clusters: a penalty of each, Gaussian mixtures."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedcel.errors import DivergedError, SettingsError
from fedcel.losses.cel import build_cel
from fedcel.losses.cel.cluster import Cluster
from fedcel.losses.protocol import ConditionalEntropy, split_features
from fedcel.losses.cel.spread_penalties import channel_penalty, linear_penalty, log_penalty
from fedcel.settings import CelSettings
from fedcel.testing import CELContract
from tests.fedcel.losses.cel.clusters import LABELS, POINTS, blobs, cluster, fresh


class TestPerCluster(CELContract):
    """The contract, with a penalty of each cluster."""

    def build(self) -> ConditionalEntropy:
        """Return the form per cluster."""
        penalty = partial(channel_penalty, features=4, sigma=0.5)
        return Cluster(penalty, "mean-present", 3, clusters=2, form="per-cluster")


class TestDiagonal(CELContract):
    """The contract, with the information of diagonal Gaussian mixtures."""

    def build(self) -> ConditionalEntropy:
        """Return the form mixture."""
        return Cluster(
            linear_penalty,
            "batch-share",
            3,
            clusters=2,
            form="mixture",
            clustering="diagonal",
            sigma=0.5,
        )


class TestFull(CELContract):
    """The contract, with the information of full Gaussian mixtures, outliers seeded anew."""

    def build(self) -> ConditionalEntropy:
        """Return the form mixture."""
        return Cluster(
            linear_penalty,
            "batch-share",
            3,
            clusters=2,
            form="mixture",
            clustering="full",
            outlier=2.0,
            sigma=0.5,
        )


MODES = [
    cluster(2),
    cluster(2, original=True),
    Cluster(partial(log_penalty, threshold=0.1), "none", 3, clusters=2, form="per-cluster"),
    *[
        Cluster(linear_penalty, "batch-share", 3, clusters=2, clustering=kind)
        for kind in ("diagonal", "full")
    ],
    *[
        Cluster(
            linear_penalty, "batch-share", 3, clusters=2, form="mixture", clustering=kind, sigma=0.3
        )
        for kind in ("k-means", "diagonal", "full")
    ],
]


@pytest.mark.parametrize("mine", MODES)
def test_gradcheck(mine: Cluster) -> None:
    """Centres are constants, the assignment is locally constant."""
    z = torch.randn(20, 3, generator=fresh(4)).double()
    y = torch.arange(20) % 3
    state = mine.refresh(None, split_features(z, y), fresh())
    batch = (z[:7] + 0.1).requires_grad_()
    assert torch.autograd.gradcheck(lambda b: mine.loss(state, b, y[:7]).loss, batch)


@settings(deadline=None, max_examples=12)
@given(
    st.integers(0, 2**32 - 1), st.floats(0.1, 10), st.sampled_from(["k-means", "diagonal", "full"])
)
def test_scaling(seed: int, scale: float, clustering: str) -> None:
    """Features s times as large: a spread s^2 times as large; information alike with s sigma."""
    z, y = torch.randn(30, 3, generator=fresh(seed)).double(), torch.arange(30) % 3
    for form, power in (("renormalised", 2), ("mixture", 0)):
        mine = Cluster(
            linear_penalty,
            "batch-share",
            3,
            clusters=2,
            form=form,
            clustering=clustering,
            sigma=0.3,
        )
        wide = replace(mine, sigma=0.3 * scale)
        one = mine.loss(mine.refresh(None, split_features(z, y), fresh()), z, y).loss
        two = wide.loss(
            wide.refresh(None, split_features(scale * z, y), fresh()), scale * z, y
        ).loss
        torch.testing.assert_close(two, scale**power * one, rtol=1e-4, atol=1e-9)


def two_groups() -> tuple[Tensor, Tensor, Cluster]:
    """Return six points of one class, a 4 + 2 split with spreads 1 and 4, and their loss."""
    z = torch.tensor([[-1.0, 0], [1, 0], [-1, 0], [1, 0], [50, -2], [50, 2]]).double()
    return z, torch.zeros(6, dtype=torch.long), cluster(2, classes=1)


def test_forms_by_hand() -> None:
    """Spreads 1 and 4 along one axis each: the penalty inside the sum, and the information."""
    z, y, mine = two_groups()
    sigma, third = 0.5, torch.tensor([2 / 3, 1 / 3]).double()
    spreads = torch.tensor([1, 4]).double()
    state = mine.refresh(None, split_features(z, y), fresh())
    inside = replace(
        mine, penalty=partial(channel_penalty, features=2, sigma=sigma), form="per-cluster"
    )
    hand = third @ torch.log1p(spreads / (2 * sigma**2))
    torch.testing.assert_close(inside.loss(state, z, y).loss, hand)
    hand = third @ (torch.log1p(spreads / sigma**2) / 2 - third.log())
    for clustering in ("k-means", "diagonal", "full"):
        mixed = replace(mine, form="mixture", clustering=clustering, sigma=sigma)
        state = mixed.refresh(None, split_features(z, y), fresh())
        torch.testing.assert_close(mixed.loss(state, z, y).loss, hand)
        alone = mixed.loss(state, z[:4], y[:4]).loss
        torch.testing.assert_close(alone, torch.tensor(5.0).double().log() / 2)


@pytest.mark.parametrize("clustering", ["diagonal", "full"])
def test_mixtures_see_shapes(clustering: str) -> None:
    """Two long parallel groups, nearer to each other than long: K-means cannot part them."""
    z = torch.randn(200, 2, generator=fresh(2)).double() * torch.tensor([4.0, 0.1])
    z[:, 1] += torch.arange(200) % 2
    y = torch.zeros(200, dtype=torch.long)
    mine = Cluster(linear_penalty, "none", 1, clusters=2, clustering=clustering, sigma=0.1)
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
        mixed = replace(mine, clustering=clustering).refresh(state, split_features(z, y), fresh(2))
        torch.testing.assert_close(mixed["centres"], state["centres"])


@pytest.mark.parametrize("mine", MODES)
def test_features_that_are_no_numbers(mine: Cluster) -> None:
    """Refused in the refresh and in the loss, with the class."""
    state = mine.refresh(None, split_features(POINTS, LABELS), fresh())
    for value in (torch.nan, torch.inf):
        broken = POINTS.clone()
        broken[5, 1] = value
        with pytest.raises(DivergedError, match="class 1.*lower local.rate"):
            mine.refresh(state, split_features(broken, LABELS), fresh())
        with pytest.raises(DivergedError, match="class 1.*lower local.rate"):
            mine.loss(state, broken, LABELS)


def test_fields_at_odds() -> None:
    """The form mixture needs noise."""
    with pytest.raises(SettingsError, match="net.noise is 0.0"):
        Cluster(linear_penalty, "none", 3, clusters=2, form="mixture")


def test_settings_reach_the_loss() -> None:
    """Each key has its field."""
    cel = CelSettings(
        kind="cluster",
        penalty="linear",
        share="none",
        clusters=4,
        form="mixture",
        clustering="full",
        reservoir=77,
        outlier=3.0,
    )
    mine = Cluster(
        linear_penalty,
        "none",
        6,
        clusters=4,
        form="mixture",
        clustering="full",
        reservoir=77,
        outlier=3.0,
        sigma=0.2,
    )
    assert build_cel(cel, 0.2, 5, 6) == mine
    changed = cel.model_copy(update={"form": "original", "outlier": "none"})
    wanted = replace(mine, form="original", outlier=None)
    assert build_cel(changed, 0.2, 5, 6) == wanted
