"""Clusters that are too wide, truncated: who is left out, and what the loss makes of it."""

import pytest
import torch
from torch import Tensor

from fedcel.losses import ClientLoss
from fedcel.losses.cel import ClusterCEL, HybridCEL
from fedcel.losses.cel.cluster import Cluster
from fedcel.losses.protocol import State
from tests.fedcel.losses.cel.clusters import fresh
from tests.fedcel.losses.single import single, split_features


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take clusters beyond one and a half medians for too wide."""
    monkeypatch.setattr("fedcel.losses.cel.kmeans.OUTLIER_FACTOR", 1.5)


def truncated(classes: int = 1) -> ClientLoss:
    """Return the loss of two clusters a class."""
    options = Cluster(penalty="linear", clusters=2, clustering="truncated-k-means")
    return single(options, classes)


TRUNCATED = truncated()


def squares() -> tuple[Tensor, Tensor]:
    """Return two groups of four points, nine apart, and a point two away from the second."""
    square = torch.tensor([[0.1, 0.1], [0.1, -0.1], [-0.1, 0.1], [-0.1, -0.1]])
    z = torch.cat([square, square + torch.tensor([9.0, 0.0]), torch.tensor([[9.0, 2.0]])])
    return z.double(), torch.zeros(9, dtype=torch.long)


def fit(loss: ClientLoss = TRUNCATED) -> State:
    return loss.refresh(None, split_features(*squares()), fresh())


def test_the_far_member_is_left_out_by_hand() -> None:
    """Spreads .02 and .656; of the wide one .39 is the limit at first, .03 around the near four."""
    state = fit()
    wide = int(state["limits"][0].argmax())
    expected = {
        "centres": torch.tensor([[0.0, 0.0], [9.0, 0.0]]),
        "limits": torch.tensor([0.0, 0.03]),
        "spreads": torch.tensor([0.02, 0.02]),
        "weights": torch.tensor([4 / 9, 5 / 9]),
    }
    for name, value in expected.items():
        both = state[name][0, [1 - wide, wide]]
        torch.testing.assert_close(both, value.double(), rtol=0, atol=1e-6)


def test_it_has_no_gradient_and_no_part_in_the_loss() -> None:
    """The others have theirs; of a batch that is far as a whole the loss is 0."""
    z, y = squares()
    z.requires_grad_()
    term = TRUNCATED.loss(fit(), z, y)
    assert term.loss.item() == pytest.approx(0.02, abs=1e-6)
    (gradient,) = torch.autograd.grad(term.loss, z)
    assert gradient[:8].any(1).all()
    assert not gradient[8].any()
    assert float(term.metrics["truncated-share"]) == pytest.approx(1 / 9)
    alone = TRUNCATED.loss(fit(), z[8:], y[8:])
    assert alone.loss.item() == 0
    assert float(alone.metrics["truncated-share"]) == 1
    reseeded = single(Cluster(penalty="linear", clusters=2, clustering="reseeded-k-means"), 1)
    assert reseeded.loss(fit(reseeded), z, y).loss.item() > 0.02


def test_clusters_alike_are_left_whole() -> None:
    """Without an outlier nobody is left out: the state and the loss of no rule at all."""
    z, y = squares()
    plain = single(Cluster(penalty="linear", clusters=2), 1)
    parts = split_features(z[:8], y[:8])
    state, expected = TRUNCATED.refresh(None, parts, fresh()), plain.refresh(None, parts, fresh())
    assert not state.pop("limits").any()
    assert all(torch.equal(state[name], tensor) for name, tensor in expected.items())


def test_equal_members_keep_their_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """More than half at one point: the median distance is 0, and yet the others are left out."""
    z = torch.cat([torch.zeros(5, 2), torch.tensor([[1.0, 0]]), 9 + torch.eye(2) * 0.01]).double()
    y = torch.zeros(8, dtype=torch.long)
    monkeypatch.setattr("fedcel.losses.cel.kmeans.OUTLIER_FACTOR", 1.0)
    loss = truncated()
    state = loss.refresh(None, split_features(z, y), fresh())
    assert float(loss.loss(state, z, y).metrics["truncated-share"]) == pytest.approx(1 / 8)


@pytest.mark.parametrize("kind", [ClusterCEL, HybridCEL])
def test_modules_truncate_and_are_saved(kind: type[ClusterCEL] | type[HybridCEL]) -> None:
    """The limits are a part of the state that another module takes."""
    z, y = squares()
    cel, other = (kind(classes=1, clusters=2, clustering="truncated-k-means") for _ in range(2))
    cel.refresh(z, y)
    other.load_state_dict(cel.state_dict())
    assert cel.measure(z, y)["truncated-share"] == pytest.approx(1 / 9)
    assert torch.equal(cel(z, y), other(z, y))
