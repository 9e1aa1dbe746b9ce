"""Clients trained at once are the clients trained one after the other, up to rounding."""

from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedcel.data import Images
from fedcel.errors import DivergedError
from fedcel.federation import (
    ClientUpdate,
    RoundRequest,
    ServerState,
    add_mean_gradient,
    batched_update,
    begin_round,
    build_workspace_net,
    client_update,
    compute_client_gradient,
    finish_round,
    init_server_state,
    select_client_images,
    update_client,
    update_clients,
)
from fedcel.federation.local_update import local_update, local_updates
from fedcel.losses.cel import State, Term
from fedcel.nets import FlatNet, StackedNet
from fedcel.settings import Settings, parse_settings

BASE = {
    "clients": 5,
    "rounds": 10,
    "local.steps": 5,
    "local.batch-size": 24,
    "net.width": 32,
    "net.features": 16,
    "cel.warm-up": 0,
    "cel.ramp": 0.01,
    "chain.burn-in": 0.9,
    "data.train": 300,
    "data.alpha": 5.0,
}
SAMPLED = {"chain.burn-in": 0.1, "cel.ramp": 0.0}
PATIENTS = {
    "data.source": "diabetes",
    "data.train": 280,
    "data.test": 60,
    "data.validation": 40,
    "data.auxiliary": 20,
    "local.clip": 1.0,
}
HERE = __name__


class Uneven:
    """A loss of one's own that decides by a number, which no batched computation allows."""

    def refresh(self, state: State | None, batches: Any, generator: torch.Generator) -> State:
        """Keep nothing."""
        return {}

    def loss(self, state: State, z: Tensor, y: Tensor, measure: bool = True) -> Term:
        """Return the features' mean square, unless it is large."""
        square = z.square().mean()
        return Term(square if square.item() < 1e6 else 0 * square, {})

    def step(self, state: State, z: Tensor, y: Tensor) -> State:
        """Learn nothing."""
        return state


class Even(Uneven):
    """The same, without a look at numbers."""

    def loss(self, state: State, z: Tensor, y: Tensor, measure: bool = True) -> Term:
        """Return the features' mean square."""
        square = z.square().mean()
        return Term(square, {"square": square.detach()} if measure else {})


class Heavy:
    """A sampler of one's own, with momentum and noise."""

    def start(self, w: Tensor, plan: Any) -> State:
        """Begin at rest."""
        return {"v": torch.zeros_like(w)}

    def step(self, state: State, w: Tensor, gradient: Tensor, add_noise: Any, plan: Any) -> State:
        """Move by the velocity."""
        velocity = 0.5 * state["v"] - plan.rate * gradient
        add_noise(velocity, 1.0)
        w.add_(velocity)
        return {"v": velocity}


def make_even(*_: object) -> Even:
    """Make the loss that can be computed for several clients at once."""
    return Even()


def make_uneven(*_: object) -> Uneven:
    """Make the loss that cannot."""
    return Uneven()


def make_heavy(*_: object) -> Heavy:
    """Make the sampler."""
    return Heavy()


class Halves(nn.Module):
    """A layer that no rule knows: two linear maps of one parameter."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.map = nn.Parameter(torch.linspace(-0.1, 0.1, inputs * outputs).view(inputs, outputs))

    def forward(self, x: Tensor) -> Tensor:
        """Return the map's image and its mirror's, halved."""
        return (x @ self.map + x.flip(1) @ self.map) / 2


def make_strange_net(
    shape: tuple[int, ...], classes: int, net: object
) -> tuple[nn.Module, nn.Module]:
    """Make a net of that layer, without a bias in its head."""
    encoder = nn.Sequential(nn.Flatten(), Halves(64, 16), nn.Softsign())
    return encoder, nn.Linear(16, classes, bias=False)


def ask(settings: Settings, state: ServerState) -> RoundRequest:
    """Return what the server asks next."""
    examples = {k: len(select_client_images(settings, k).y) for k in range(settings.clients)}
    request = begin_round(settings, state, examples)
    if request.plan.control != "fresh":
        return request
    number, model = request.inputs.round_number, request.inputs.model
    gradients = {k: compute_client_gradient(settings, k, model, number) for k in request.weights}
    return add_mean_gradient(request, gradients)


def compare(change: Mapping[str, Any], first: int = 1, rounds: int = 2) -> list[str]:
    """Train both ways from the same models and states; return why clients came one by one."""
    settings = parse_settings({**BASE, **change})
    flat = build_workspace_net(settings)
    server = init_server_state(flat.vector, settings, flat.net)._replace(round=first - 1)
    states: dict[int, State] = {}
    reasons: list[str] = []
    for _ in range(rounds):
        request = ask(settings, server)
        singly = [
            update_client(settings, k, weight, request.inputs, state=states.get(k))
            for k, weight in request.weights.items()
        ]
        at_once = update_clients(
            settings,
            request.weights,
            request.inputs,
            read_state=states.get,
            fall_back=reasons.append,
        )
        for expected, actual in zip(singly, at_once, strict=True):
            assert_alike(expected, actual)
        states = {k: update.state for k, update in zip(request.weights, singly, strict=True)}
        server, _ = finish_round(settings, server, request, singly, cut=flat.cut, classes=10)
    return reasons


def assert_alike(expected: ClientUpdate, actual: ClientUpdate) -> None:
    """Hold two updates of a client to each other, whatever they are made of."""
    assert float(expected.delta.abs().max()) > 1e-4
    for name in ("delta", "model"):
        torch.testing.assert_close(
            getattr(actual, name), getattr(expected, name), rtol=0, atol=1e-5
        )
    assert actual.state.keys() == expected.state.keys()
    for name, tensor in expected.state.items():
        torch.testing.assert_close(actual.state[name].detach(), tensor.detach(), rtol=0, atol=2e-4)
    assert actual.metrics == pytest.approx(expected.metrics, abs=1e-4)


@pytest.mark.parametrize(
    "change",
    [
        {"cel.kind": "none"},
        {"cel.kind": "plain"},
        {"cel.kind": "plain", "cel.penalty": "log", "cel.clip": 0.01, "cel.share": "none"},
        {"cel.kind": "cluster"},
        {"cel.kind": "cluster", "cel.clusters": 3},
        {"cel.kind": "cluster", "cel.clusters": 2, "cel.form": "original"},
        {
            "cel.kind": "cluster",
            "cel.clusters": 3,
            "cel.outlier": 1.1,
            "cel.outlier-rule": "truncate",
        },
        {"cel.kind": "gated"},
        {"cel.kind": "gated", "cel.attention": "floor", "cel.entropy": 0.1},
        {"cel.kind": "gated", "cel.attention": "detach"},
        {"cel.kind": "hybrid"},
        {"cel.kind": "gated", "cel.passes": "two", "defence.name": "adversarial"},
        {"cel.kind": "plain", "cel.momentum": 0.9, "cel.clip": 0.01, "local.batch-size": 4},
        {"cel.kind": "gated", "cel.attention-step": "gradient"},
        {"cel.kind": "hybrid", "cel.attention-step": "gradient", "cel.momentum": 0.5},
        {"cel.kind": "mutual-information"},
        {
            "net.name": "tests.fedcel.losses.cel.test_pooled:make_net",
            "cel.kind": "cluster",
            "cel.clusters": 2,
            "cel.pool": "mean",
        },
        {"cel.kind": f"{HERE}:make_even"},
        {"defence.name": "nopeek"},
        {"defence.name": "adversarial", "defence.width": 16},
        {"defence.name": "dropout", "defence.strength": 0.3},
        {"net.noise-shape": "feature", "cel.kind": "cluster", "cel.clusters": 2},
        {"net.noise-shape": "image", "cel.kind": "plain", "cel.clip": 0.01},
        {"defence.name": "learned-noise", "cel.kind": "gated"},
        {"defence.name": "vib"},
        {"defence.name": "vib", "defence.marginal": "fixed", "net.noise-shape": "one"},
        {"defence.name": "ceb", "cel.kind": "plain"},
        {"defence.name": "ceb", "net.noise-shape": "feature", "net.name": "strided"},
        {"defence.name": "bottleneck", "defence.strength": 6},
        {"local.sampler": f"{HERE}:make_heavy", **SAMPLED, "chain.scope": "full"},
        {"local.clip": 0.1, "local.augment": "affine", "local.balance": True},
        {"net.name": f"{HERE}:make_strange_net", "cel.kind": "plain"},
        {"net.name": "strided", "net.width": 16},
        {**PATIENTS, "net.head": "gaussian"},
        {**PATIENTS, "net.head": "heteroscedastic", "net.head-width": 8, "cel.kind": "cluster"},
    ],
    ids=lambda change: " ".join(str(value).split(":")[-1] for value in change.values()),
)
def test_clients_at_once_are_those_one_by_one(change: dict[str, Any]) -> None:
    """Deltas, states and metrics of two rounds; every loss, defence and sampler."""
    assert compare(change) == []


@pytest.mark.parametrize(
    "change",
    [
        {"chain.scope": "full", "local.clip": 1.0},
        {"chain.scope": "head", "cel.kind": "gated", "local.balance": True},
        {"chain.scope": "full", "local.control": "fresh"},
    ],
    ids=["full", "head", "fresh"],
)
def test_sampling_clients_draw_the_same_noise_at_once(change: dict[str, Any]) -> None:
    """Each has its own stream and its own variate."""
    assert compare({**SAMPLED, "temperature": 1.0, **change}, first=4) == []


def test_clients_of_unequal_size_are_trained_in_their_order() -> None:
    """Some hold less than a batch; those of equal batches come together, one alone."""
    change = {"data.alpha": 0.5, "local.batch-size": 40, "clients": 9, "data.train": 200}
    settings = parse_settings({**BASE, **change})
    sizes = {min(40, len(select_client_images(settings, k).y)) for k in range(9)}
    assert len(sizes) > 3
    assert compare({**change, "cel.kind": "cluster"}) == []


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"cel.kind": "cluster", "cel.clustering": "diagonal"}, "cel.kind 'cluster'"),
        ({"cel.kind": f"{HERE}:make_uneven"}, "make_uneven"),
    ],
    ids=["diagonal", "own"],
)
def test_what_cannot_be_computed_at_once_is_named(change: dict[str, Any], reason: str) -> None:
    """The updates are then those of one client after the other, and somebody is told why."""
    reasons = compare(change, rounds=1)
    assert len(reasons) == 1
    assert reason in reasons[0]


def train_clients(settings: Settings, request: RoundRequest) -> Iterator[ClientUpdate]:
    """Train all clients of a first round at once; it is a failure where that cannot be."""
    return update_clients(
        settings,
        request.weights,
        request.inputs,
        read_state=lambda client: None,
        fall_back=pytest.fail,
    )


@pytest.mark.filterwarnings("ignore:net.bound is")
def test_clients_that_diverge_are_what_they_are_alone() -> None:
    """Their updates are not finite, to the bit as those of one client after the other."""
    settings = parse_settings({**BASE, "net.bound": "none", "local.rate": 1e12})
    request = ask(settings, init_server_state(build_workspace_net(settings).vector))
    singly = [update_client(settings, k, w, request.inputs) for k, w in request.weights.items()]
    at_once = train_clients(settings, request)
    for expected, actual in zip(singly, at_once, strict=True):
        assert not expected.delta.isfinite().all()
        torch.testing.assert_close(actual.delta, expected.delta, rtol=0, atol=0, equal_nan=True)


@pytest.mark.filterwarnings("ignore:net.bound is")
def test_features_that_ran_away_stop_the_client_that_has_them() -> None:
    """`cluster` refuses features that are not finite, in the words of one client."""
    settings = parse_settings(
        {**BASE, "cel.kind": "cluster", "net.bound": "none", "local.rate": 1e12}
    )
    request = ask(settings, init_server_state(build_workspace_net(settings).vector))
    at_once = train_clients(settings, request)
    with pytest.raises(DivergedError, match="round 1, client 0: class"):
        list(at_once)


def test_large_nets_leave_room_for_fewer_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as their parameters fit, never none; batches of any size give the same."""
    settings = parse_settings({**BASE, "clients": 7})
    size = len(build_workspace_net(settings).vector)
    monkeypatch.setattr(batched_update, "PARAMETERS_AT_ONCE", 3 * size + 1)
    assert batched_update.count_clients_at_once(settings) == 3
    assert compare({"clients": 7, "cel.kind": "plain"}, rounds=1) == []
    monkeypatch.setattr(batched_update, "PARAMETERS_AT_ONCE", 1)
    assert batched_update.count_clients_at_once(settings) == 1


STRONG = {
    "clients": 4,
    "data.train": 500,
    "net.width": 256,
    "net.features": 64,
    "net.noise": 0.3,
    "local.rate": 1.4,
    "local.batch-size": 32,
    "cel.kind": "cluster",
    "cel.weight": 3.0,
}
"""At the edge of stability: each step multiplies what the one before has rounded."""


def test_a_strong_loss_is_equal_step_by_step() -> None:
    """One step from the same model and states; over whole rounds rounding grows to any size."""
    assert compare({**STRONG, "local.steps": 1}, rounds=3) == []


def measure_gap(dtype: torch.dtype) -> float:
    """Measure how far clients at once end from those one by one after a round of 40 steps."""
    settings = parse_settings({**BASE, **STRONG, "local.steps": 40})
    workspace = build_workspace_net(settings)
    request = ask(settings, init_server_state(workspace.vector.clone()))
    flat = FlatNet(deepcopy(workspace.net).to(dtype))
    losses = client_update.build_client_losses(settings)
    rounds = []
    for client, weight in request.weights.items():
        client_round, _ = client_update.prepare_client(
            settings, client, weight, request.inputs, losses=losses, state=None
        )
        x, y = client_round.images
        rounds.append(client_round._replace(images=Images(x.to(dtype), y)))
    received = request.inputs.model.to(dtype)
    at_once = local_updates(
        flat,
        StackedNet(flat, len(rounds)),
        received,
        rounds,
        local=settings.local,
        refresh_every=1,
    )
    gap = 0.0
    for client_round, update in zip(rounds, at_once, strict=True):
        images, plan, streams, acting, _, _ = client_round
        single = local_update(
            flat,
            received,
            images,
            plan=plan,
            local=settings.local,
            streams=streams,
            losses=acting,
            refresh_every=1,
        )
        assert single.delta.dtype == dtype
        gap = max(gap, float((update.delta - single.delta).abs().max()))
    return gap


def test_a_strong_loss_is_equal_over_a_round_in_double_precision() -> None:
    """What single precision makes of the same round is its rounding, multiplied by 40 steps."""
    assert measure_gap(torch.float64) < 1e-8
    assert measure_gap(torch.float32) > 1e-2
