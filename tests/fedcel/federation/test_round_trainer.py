"""Clients trained at once are the clients trained one after the other, up to rounding."""

from collections.abc import Iterator, Mapping
from copy import deepcopy
from math import prod
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn

from fedcel import run_parts
from fedcel.data import Images
from fedcel.errors import DivergedError
from fedcel.federation import (
    ClientUpdate,
    RoundRequest,
    RoundTrainer,
    ServerState,
    begin_round,
    finish_round,
    init_server_state,
    name_obstacle,
    round_trainer,
    train_clients,
)
from fedcel.losses import Batch, ClientLoss
from fedcel.losses.cel import State, Term
from fedcel.nets import FlatNet, NetSettings
from fedcel.run_parts import (
    build_client_parts,
    build_server_parts,
    build_terms,
    build_workspace_net,
    count_clients_at_once,
    init_run_state,
    select_client_images,
)
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
HERE = __name__


class Uneven(ClientLoss):
    """A loss of one's own, which knows one client only."""

    def loss(self, state: State, batch: Batch, measure: bool = True) -> Term:
        """Return the features' mean square, unless it is large."""
        square = batch.z.square().mean()
        value = square if square.item() < 1e6 else 0 * square
        return Term(value, {"square": square.detach()} if measure else {})


class Heavy:
    """A sampler of one's own, with momentum and noise."""

    def start(self, w: Tensor, plan: Any) -> State:
        return {"v": torch.zeros_like(w)}

    def step(self, state: State, w: Tensor, gradient: Tensor, add_noise: Any, plan: Any) -> State:
        velocity = 0.5 * state["v"] - plan.rate * gradient
        add_noise(velocity, 1.0)
        w.add_(velocity)
        return {"v": velocity}


def make_uneven(*_: object) -> Uneven:
    """Make the loss that cannot be computed for several clients at once."""
    return Uneven()


def make_heavy(*_: object) -> Heavy:
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


class Choosing(Halves):
    """The same, if a number is small, which no batched computation allows to ask."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the image, unless inputs are large."""
        image = super().forward(x)
        return image if x.sum().item() < 1e6 else 0 * image


class Tied(nn.Module):
    """Two layers that share their parameters."""

    def __init__(self, values: int) -> None:
        super().__init__()
        self.first = self.second = nn.Linear(values, values)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.second(self.first(x).tanh())
        return output


def make_choosing_net(
    shape: tuple[int, ...], classes: int, net: object
) -> tuple[nn.Module, nn.Module]:
    encoder = nn.Sequential(nn.Flatten(), Choosing(64, 16), nn.Softsign())
    return encoder, nn.Linear(16, classes)


def make_tied_net(shape: tuple[int, ...], classes: int, net: object) -> tuple[nn.Module, nn.Module]:
    return nn.Sequential(nn.Flatten(), Tied(64), nn.Softsign()), nn.Linear(64, classes)


def ask(settings: Settings, state: ServerState) -> RoundRequest:
    examples = {k: len(select_client_images(settings, k).y) for k in range(settings.clients)}
    return begin_round(build_server_parts(settings), state, examples)


def compare(
    change: Mapping[str, Any], first: int = 1, rounds: int = 2, at_once: int | None = None
) -> list[str]:
    """Train both ways from the same models and states; return why clients came one by one."""
    settings = parse_settings({**BASE, **change})
    at_once = at_once or count_clients_at_once(settings)
    assert at_once > 1
    flat = build_workspace_net(settings)
    server = init_run_state(settings, flat)._replace(round=first - 1)
    states: dict[int, State] = {}
    reasons: list[str] = []
    for _ in range(rounds):
        request = ask(settings, server)
        given = build_client_parts(settings), request
        singly = list(RoundTrainer(*given, read_state=states.get).train())
        with patch.object(round_trainer, "train_clients", wraps=train_clients) as trained:
            trainer = RoundTrainer(
                *given, read_state=states.get, at_once=at_once, report_obstacle=reasons.append
            )
            together = list(trainer.train())
        sizes = {len(call.args[2]) for call in trained.call_args_list}
        assert max(sizes) <= at_once
        assert reasons or max(sizes) > 1
        for expected, actual in zip(singly, together, strict=True):
            assert_alike(expected, actual)
        states = {k: update.state for k, update in zip(request.weights, singly, strict=True)}
        server, _ = finish_round(
            build_server_parts(settings), server, request, singly, device_size=flat.device_size
        )
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
        # Inverse factors of near singular covariances are as much larger as their rounding.
        rtol = 1e-3 if name.endswith("whitenings") else 0
        torch.testing.assert_close(
            actual.state[name].detach(), tensor.detach(), rtol=rtol, atol=2e-4
        )
    assert actual.metrics == pytest.approx(expected.metrics, abs=1e-4)


@pytest.mark.parametrize(
    "change",
    [
        {"cel.kind": "none"},
        {"cel.kind": "plain"},
        {"cel.kind": "plain", "cel.penalty": "log", "cel.clip": 0.01, "cel.share": "none"},
        {"cel.kind": "cluster"},
        {"cel.kind": "cluster", "cel.clusters": 3},
        {"cel.kind": "cluster", "cel.clusters": 0, "cel.clustering": "reseeded-k-means"},
        {"cel.kind": "cluster", "cel.clusters": 3, "cel.clustering": "truncated-k-means"},
        {"cel.kind": "cluster", "cel.clusters": 2, "cel.clustering": "diagonal"},
        {"cel.kind": "cluster", "cel.clusters": 2, "cel.clustering": "full"},
        {"cel.kind": "gated"},
        {"cel.kind": "gated", "cel.attention": "floor"},
        {"cel.kind": "gated", "cel.attention": "detach"},
        {"cel.kind": "hybrid"},
        {"cel.kind": "gated", "cel.momentum": 0.0, "defence.name": "adversarial"},
        {"cel.kind": "plain", "cel.momentum": 0.9, "cel.clip": 0.01, "local.batch-size": 4},
        {"cel.kind": "hybrid", "cel.momentum": 0.5},
        {"cel.kind": "mutual-information"},
        {
            "net.name": "tests.fedcel.losses.cel.test_pooled:make_net",
            "cel.kind": "cluster",
            "cel.clusters": 2,
            "cel.pool": "mean",
        },
        {"defence.name": "nopeek"},
        {"defence.name": "adversarial"},
        {"defence.name": "dropout", "defence.strength": 0.3},
        {"defence.name": "fisher-noise", "cel.kind": "cluster", "cel.clusters": 2},
        {"defence.name": "vib", "cel.kind": "plain", "cel.clip": 0.01},
        {"defence.name": "learned-noise", "cel.kind": "gated"},
        {"defence.name": "vib"},
        {"defence.name": "ceb", "cel.kind": "plain"},
        {"defence.name": "ceb", "net.name": "strided"},
        {"defence.name": "bottleneck", "defence.strength": 6},
        {"local.sampler": f"{HERE}:make_heavy", **SAMPLED, "chain.scope": "full"},
        {"local.clip": 0.1, "local.augment": "affine", "local.balance": True},
        {"local.augment": "crop,flip,cutout"},
        {"net.name": f"{HERE}:make_strange_net", "cel.kind": "plain"},
        {"net.name": "strided", "net.width": 16},
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
    ],
    ids=["full", "head"],
)
def test_sampling_clients_draw_the_same_noise_at_once(change: dict[str, Any]) -> None:
    """Each has its own stream."""
    assert compare({**SAMPLED, "temperature": 1.0, **change}, first=4) == []


def test_clients_of_unequal_size_are_trained_in_their_order() -> None:
    """Some hold less than a batch; those of equal batches come together, one alone."""
    change = {"data.alpha": 0.5, "local.batch-size": 40, "clients": 9, "data.train": 400}
    settings = parse_settings({**BASE, **change})
    sizes = {min(40, len(select_client_images(settings, k).y)) for k in range(9)}
    assert len(sizes) > 3
    assert compare({**change, "cel.kind": "cluster"}) == []


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"cel.kind": f"{HERE}:make_uneven"}, "make_uneven' takes one client's batch at a time"),
        ({"net.name": f"{HERE}:make_choosing_net"}, ".item()"),
        ({"net.name": f"{HERE}:make_tied_net"}, "share parameters"),
    ],
    ids=["loss", "net", "shared parameters"],
)
def test_what_cannot_be_computed_at_once_is_named(change: dict[str, Any], reason: str) -> None:
    """The updates are then those of one client after the other, and somebody is told why."""
    reasons = compare(change, rounds=1, at_once=5)
    assert len(reasons) == 1
    assert reason in reasons[0]


def test_an_obstacle_that_is_known_leaves_clients_one_by_one() -> None:
    """A loss of one's own is named before anything is trained; built-in ones are no obstacle."""
    own = parse_settings({**BASE, "cel.kind": f"{HERE}:make_uneven"})
    reason = name_obstacle(build_terms(own))
    assert reason is not None and "make_uneven" in reason
    assert count_clients_at_once(own) == 1
    built_in = parse_settings({**BASE, "cel.kind": "cluster", "defence.name": "adversarial"})
    assert name_obstacle(build_terms(built_in)) is None
    assert count_clients_at_once(built_in) > 1


def train_together(settings: Settings, request: RoundRequest) -> Iterator[ClientUpdate]:
    """Train all clients of a first round at once; it is a failure where that cannot be."""
    return RoundTrainer(
        build_client_parts(settings),
        request,
        at_once=settings.clients,
        report_obstacle=pytest.fail,
    ).train()


def build_unbounded(
    shape: tuple[int, ...], classes: int, net: NetSettings
) -> tuple[nn.Module, nn.Module]:
    """Build a dense net whose features have no bound."""
    hidden = nn.Linear(prod(shape), net.features)
    last = nn.Linear(net.features, net.features)
    return nn.Sequential(nn.Flatten(), hidden, nn.ReLU(), last), nn.Linear(net.features, classes)


RUNAWAY = {"net.name": f"{__name__}:build_unbounded", "local.rate": 1e12}


def test_clients_that_diverge_are_what_they_are_alone() -> None:
    """Their updates are not finite, to the bit as those of one client after the other."""
    settings = parse_settings(BASE | RUNAWAY)
    request = ask(settings, init_server_state(build_workspace_net(settings).vector))
    singly = RoundTrainer(build_client_parts(settings), request).train()
    at_once = train_together(settings, request)
    for expected, actual in zip(singly, at_once, strict=True):
        assert not expected.delta.isfinite().all()
        torch.testing.assert_close(actual.delta, expected.delta, rtol=0, atol=0, equal_nan=True)


def test_features_that_ran_away_stop_the_client_that_has_them() -> None:
    """`cluster` refuses features that are not finite, in the words of one client."""
    settings = parse_settings({**BASE, "cel.kind": "cluster", **RUNAWAY})
    request = ask(settings, init_server_state(build_workspace_net(settings).vector))
    at_once = train_together(settings, request)
    with pytest.raises(DivergedError, match="round 1, client 0: class"):
        list(at_once)


def test_large_nets_leave_room_for_fewer_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as their parameters fit, never none; batches of any size give the same."""
    settings = parse_settings({**BASE, "clients": 7})
    size = len(build_workspace_net(settings).vector)
    monkeypatch.setattr(run_parts, "PARAMETERS_AT_ONCE", 3 * size + 1)
    assert count_clients_at_once(settings) == 3
    assert compare({"clients": 7, "cel.kind": "plain"}, rounds=1) == []
    monkeypatch.setattr(run_parts, "PARAMETERS_AT_ONCE", 1)
    assert count_clients_at_once(settings) == 1


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


def train_strong(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return the deltas (K, P) of a round of 40 steps, of clients at once and one by one."""
    settings = parse_settings({**BASE, **STRONG, "local.steps": 40})
    workspace = build_workspace_net(settings)
    request = ask(settings, init_server_state(workspace.vector.clone()))
    flat = FlatNet(deepcopy(workspace.net).to(dtype))
    trainer, clients = RoundTrainer(build_client_parts(settings), request), []
    for client in request.weights:
        prepared = trainer.prepare_client(client, None, request.plan)
        x, y = prepared.images
        clients.append(prepared._replace(images=Images(x.to(dtype), y)))
    received = request.model.to(dtype)
    at_once = train_clients(FlatNet(flat.net, len(clients)), received, clients, request.plan)
    singly = [train_clients(flat, received, [client], request.plan)[0] for client in clients]
    deltas = [torch.stack([update.delta for update in updates]) for updates in (at_once, singly)]
    assert deltas[0].dtype == deltas[1].dtype == dtype
    return deltas[0], deltas[1]


def test_a_strong_loss_is_equal_over_a_round_in_double_precision() -> None:
    """What single precision makes of the same round is its rounding, multiplied by 40 steps."""
    at_once, singly = train_strong(torch.float64)
    torch.testing.assert_close(at_once, singly, rtol=0, atol=1e-8)
    for rounded in train_strong(torch.float32):
        assert (rounded - singly).abs().max() > 1e-2
