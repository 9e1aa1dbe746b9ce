"""Statistics, losses and steps of several clients at once: those of each client alone."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from fedcel.errors import DataError, SettingsError, StackingError
from fedcel.losses.cel import Cluster
from fedcel.losses.protocol import State
from fedcel.tensors import select_row, stack_states
from tests.fedcel.losses.cel.gates import gated
from tests.fedcel.losses.cel.readers import read_clients
from tests.fedcel.losses.single import single, split_features

CLASSES, CLIENTS = 3, 3
Client = tuple[Tensor, Tensor]
OPTIONS: dict[str, dict[str, Any]] = {
    "one": {"clusters": 1},
    "three": {"clusters": 3},
    "by count": {"clusters": 0},
    "reseeded": {"clusters": 3, "clustering": "reseeded-k-means"},
    "truncated": {"clusters": 2, "clustering": "truncated-k-means"},
    "diagonal": {"clusters": 2, "clustering": "diagonal"},
    "full": {"clusters": 2, "clustering": "full"},
}


@pytest.fixture(autouse=True)
def wide_clusters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clusters that are too wide."""
    monkeypatch.setattr("fedcel.losses.cel.kmeans.OUTLIER_FACTOR", 1.2)


def cluster(**options: Any) -> Any:
    """Return the linear loss of three classes."""
    return single(Cluster(penalty="linear", **options), CLASSES)


def fresh(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def make_clients(features: int = 4, seed: int = 1) -> list[Client]:
    """Return features of three clients of unequal sizes, one without a class, in far groups."""
    stream = fresh(seed)
    labels = [torch.arange(40) % 3, torch.arange(25) % 2, torch.arange(60) % 3]
    corners = 3 * torch.randn(3, features, generator=stream)
    return [
        (corners[torch.arange(len(y)) % 3] + torch.randn(len(y), features, generator=stream), y)
        for y in labels
    ]


def move(clients: Sequence[Client], seed: int = 2) -> list[Client]:
    """Return the features of a later round."""
    stream = fresh(seed)
    return [(z + 0.3 * torch.randn(z.shape, generator=stream), y) for z, y in clients]


def refresh_both(
    loss: Any,
    stored: Sequence[State] | None,
    clients: Sequence[Client],
    *,
    seed: int,
    size: int = 1024,
) -> tuple[State, list[State]]:
    """Return the states of all at once, and those of each alone, of the same streams."""
    generators = [fresh(seed + k) for k in range(len(clients))]
    joined = None if stored is None else stack_states(stored)
    together = loss.term.refresh(joined, read_clients(*clients, size=size), generators)
    alone = []
    for k, (z, y) in enumerate(clients):
        stream = fresh(seed + k)
        before = None if stored is None else select_row(stack_states(stored), k)
        alone.append(loss.refresh(before, split_features(z, y, size), stream))
        assert torch.equal(generators[k].get_state(), stream.get_state()), "draws differ"
    return together, alone


def require_same(together: State, alone: Sequence[State]) -> None:
    """Each row is the state of that client alone; what learns is a leaf there, too."""
    for k, state in enumerate(alone):
        assert state.keys() == together.keys()
        for name, tensor in state.items():
            assert together[name].shape == (len(alone), *tensor.shape)
            torch.testing.assert_close(
                together[name][k].detach(), tensor.detach(), rtol=0, atol=1e-5
            )
            assert together[name].requires_grad == tensor.requires_grad
            assert together[name].is_leaf


@pytest.mark.parametrize("size", [7, 1024], ids=["pieces", "whole"])
@pytest.mark.parametrize("name", OPTIONS)
def test_clusters_of_clients_at_once_are_those_of_each(name: str, size: int) -> None:
    """Cold, from their last centres, and where one client's are lost; what is drawn is its own."""
    loss, clients = cluster(**OPTIONS[name]), make_clients()
    cold, states = refresh_both(loss, None, clients, seed=10, size=size)
    require_same(cold, states)
    assert (cold["weights"] > 0).any((1, 2)).all()
    warm, later = refresh_both(loss, states, move(clients), seed=20, size=size)
    require_same(warm, later)
    assert not torch.allclose(warm["centres"], cold["centres"], atol=1e-3)
    lost = {**states[1], "weights": torch.zeros_like(states[1]["weights"])}
    mixed = [states[0], lost, states[2]]
    again, each = refresh_both(loss, mixed, move(clients), seed=30, size=size)
    require_same(again, each)
    torch.testing.assert_close(again["weights"].sum(-1), warm["weights"].sum(-1))


def test_the_options_do_something() -> None:
    """Outliers are seeded anew, and limits set."""
    clients, plain = make_clients(), cluster(clusters=3)
    expected, _ = refresh_both(plain, None, clients, seed=10)
    reseeded, _ = refresh_both(
        cluster(clusters=3, clustering="reseeded-k-means"), None, clients, seed=10
    )
    truncated, _ = refresh_both(cluster(**OPTIONS["truncated"]), None, clients, seed=10)
    assert not torch.allclose(reseeded["centres"], expected["centres"])
    assert (truncated["limits"] > 0).any()
    assert expected["counts"].tolist() == [[14, 13, 13], [13, 12, 0], [20, 20, 20]]
    assert not expected["weights"][1, 2].any()


def test_wide_features_are_projected_by_each_clients_own_draw() -> None:
    """Cold starts of 80 values look at a projection of them."""
    loss, clients = cluster(clusters=3), make_clients(80)
    require_same(*refresh_both(loss, None, clients, seed=10))


def test_a_refresh_within_a_round_keeps_an_attention_that_learns() -> None:
    """Its values, its moments and its count; the leaf gathers its gradient alone."""
    loss, clients = gated("ascend"), make_clients()
    state, _ = refresh_both(loss, None, clients, seed=1)
    state = {**state, "m": state["m"] + 1, "t": state["t"] + 3}
    again = loss.term.refresh(state, read_clients(*clients), [fresh(k) for k in range(3)])
    assert all(torch.equal(again[name], tensor) for name, tensor in state.items())
    assert again["theta"].is_leaf and again["theta"].requires_grad


def test_states_that_do_not_fit_are_refused() -> None:
    """Of other numbers of clusters, features or weights; of clients that differ; without images."""
    clients, generators = make_clients(), [fresh(k) for k in range(CLIENTS)]
    reader = read_clients(*clients)
    state = cluster(clusters=3).term.refresh(None, reader, generators)
    with pytest.raises(SettingsError, match=r"\(3, 3, 4\), must be \(3, 4, 4\)"):
        cluster(clusters=4).term.refresh(state, reader, generators)
    for loss in (gated("ascend"), cluster(clusters=3)):
        with pytest.raises(SettingsError, match="must hold"):
            loss.term.refresh({"foreign": torch.ones(CLIENTS, 3)}, reader, generators)
    learning = gated("ascend").term.refresh(None, reader, generators)
    for before in (learning, {name: tensor.detach() for name, tensor in learning.items()}):
        with pytest.raises(SettingsError, match="576 weights, must have 832"):
            gated("ascend", features=6).term.refresh(before, reader, generators)
    empty = clients[0][0][:0], clients[0][1][:0]
    with pytest.raises(DataError, match="a client has 0 examples"):
        cluster(clusters=3).term.refresh(None, read_clients(clients[0], empty), generators[:2])
    other = cluster(clusters=2).refresh(None, split_features(*clients[0]), fresh(0))
    states = [select_row(state, 0), other]
    with pytest.raises(StackingError, match="different shapes"):
        stack_states(states)


def test_parts_of_a_stack_have_memory_of_their_own() -> None:
    """A row that is changed leaves the stack, and a stack its rows."""
    state = gated("ascend").refresh(None, split_features(*make_clients()[0]), fresh(0))
    joined = stack_states([state, state])
    row = select_row(joined, 1)
    assert joined["theta"].requires_grad and row["theta"].is_leaf and row["theta"].requires_grad
    row["m"].fill_(7)
    joined["t"].fill_(5)
    assert not joined["m"].any()
    assert not state["t"].any() and not row["t"].any()
