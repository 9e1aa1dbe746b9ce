"""Clusters seeded by the attention."""

from typing import Any

import torch

from fedcel.losses.cel.cluster import Cluster
from fedcel.losses.cel.conditional_entropy import class_members
from fedcel.losses.cel.gated import attention_scores, attention_weights
from fedcel.losses.cel.hybrid import Hybrid
from fedcel.tensors import add_prefix, select_prefix
from tests.fedcel.losses.cel.gates import gated
from tests.fedcel.losses.cel.readers import read_clients
from tests.fedcel.losses.single import single, split_features


def hybrid(clusters: int, classes: int = 3) -> Any:
    """Return the linear loss, its attention climbing."""
    return single(Hybrid(penalty="linear", clusters=clusters), classes)


def fresh(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_loss_is_the_clusters_and_the_attentions_gradient_is_gated() -> None:
    """Value, metrics and features' gradient of one part, theta's gradient of the other."""
    z, y = torch.randn(18, 4, generator=fresh(1)), torch.arange(18) % 3
    mine = hybrid(2)
    state = mine.refresh(None, split_features(z, y), fresh(2))
    batch, own = (z[:12] + 0.1).requires_grad_(), y[:12]
    term = mine.loss(state, batch, own)
    cluster = single(Cluster(penalty="linear", clusters=2))
    around = cluster.loss(select_prefix(state, "cluster."), batch, own)
    weighted = gated("ascend").loss(select_prefix(state, "gated."), batch.detach(), own)
    assert torch.equal(term.loss, around.loss)
    assert term.metrics == weighted.metrics | around.metrics
    theta = state["gated.theta"]
    at_z, at_theta = torch.autograd.grad(term.loss, (batch, theta))
    assert torch.equal(at_z, torch.autograd.grad(around.loss, batch)[0])
    assert torch.equal(at_theta, torch.autograd.grad(weighted.loss, theta)[0])


def test_gradcheck() -> None:
    """The features' gradient, centres constant."""
    z, y = torch.randn(12, 4, generator=fresh(3)).double(), torch.arange(12) % 3
    state = hybrid(2).refresh(None, split_features(z, y), fresh(4))
    batch = (z + 0.05).requires_grad_()
    assert torch.autograd.gradcheck(lambda z: hybrid(2).loss(state, z, y).loss, batch)


def test_starts_are_drawn_in_proportion_to_the_attention() -> None:
    """The first of four members, 1000 times in pieces: chi-squared below its .9999 quantile."""
    z, y = torch.randn(4, 4, generator=fresh(5)), torch.zeros(4, dtype=torch.long)
    mine = hybrid(2, classes=1)
    theta = 6 * gated("ascend").refresh(None, split_features(z, y), fresh(6))["theta"].detach()
    a = attention_scores(theta, torch.nn.functional.layer_norm(z, (4,)))
    alpha = attention_weights(a, class_members(y, 1, z))[:, 0]
    assert alpha.max() > 2 * alpha.min()
    generator, hits = fresh(7), torch.zeros(4)
    for _ in range(1000):
        starts = mine._draw_members(theta[None], read_clients((z, y), size=3), [generator])
        hits += (z == starts.z[0]).all(1)
    assert ((hits - 1000 * alpha).square() / (1000 * alpha)).sum() < 21.1


def test_centres_start_at_the_draws() -> None:
    """As many clusters as members drawn: the fit on the very draws has them for centres."""
    z, y = torch.randn(6, 4, generator=fresh(8)), torch.arange(6) % 2
    mine = hybrid(3, classes=2)
    state = mine.refresh(None, split_features(z, y), fresh(9))
    for c in range(2):
        centres = state["cluster.centres"][c]
        torch.testing.assert_close(
            centres[centres[:, 0].argsort()], z[y == c][z[y == c, 0].argsort()]
        )


def test_the_draws_decide_which_optimum() -> None:
    """Two clusters for a rectangle's corners split it along the side that the starts share not.

    Weights so uneven that the two highest scores are the starts; diagonal ones decide nothing.
    """
    z = torch.tensor([[0.0, 0, 1, 2], [1, 0, 1, 2], [0, 1.2, 1, 2], [1, 1.2, 1, 2]])
    y, mine, splits = torch.zeros(4, dtype=torch.long), hybrid(2, classes=1), set()
    for seed in range(20):
        attention = gated("ascend").refresh(None, split_features(z, y), fresh(seed))
        theta = attention["theta"].detach().clone()
        theta[-64:] *= 1e6
        a = attention_scores(theta, torch.nn.functional.layer_norm(z, (4,)))
        apart = z[a.argsort()[-2:]].diff(dim=0)[0] != 0
        if apart.sum() == 1:
            state = add_prefix("gated.", {**attention, "theta": theta})
            centres = mine.refresh(state, split_features(z, y), fresh(seed))["cluster.centres"][0]
            assert torch.equal(centres.diff(dim=0)[0] != 0, apart)
            splits.add(apart.tolist().index(True))
    assert splits == {0, 1}
