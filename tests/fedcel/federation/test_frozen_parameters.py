"""Parameters with `requires_grad=False` never move: not by gradients, nor by any noise."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from fedcel.errors import NetError, PluginError
from fedcel.federation import (
    ClientUpdate,
    RoundRequest,
    RoundTrainer,
    ServerState,
    begin_round,
    finish_round,
)
from fedcel.run_parts import (
    build_client_parts,
    build_server_parts,
    build_workspace_net,
    init_run_state,
    select_client_images,
)
from fedcel.settings import Settings, parse_settings
from tests.fedcel.federation.test_round_trainer import compare

HERE = __name__
BASE = {
    "clients": 4,
    "rounds": 10,
    "temperature": 1.0,
    "chain.scope": "full",
    "chain.burn-in": 0.1,
    "cel.kind": "cluster",
    "cel.warm-up": 0,
    "cel.ramp": 0.0,
    "local.steps": 3,
    "data.train": 300,
    "net.name": f"{HERE}:make_net",
}
FROZEN = 64 * 16 + 16
"""Values of the first layer."""


def make_net(shape: tuple[int, ...], classes: int, net: object) -> tuple[nn.Module, nn.Module]:
    first = nn.Linear(64, 16).requires_grad_(False)
    encoder = nn.Sequential(nn.Flatten(), first, nn.ReLU(), nn.Linear(16, 8), nn.Sigmoid())
    return encoder, nn.Linear(8, classes)


def make_frozen_head(
    shape: tuple[int, ...], classes: int, net: object
) -> tuple[nn.Module, nn.Module]:
    encoder, head = make_net(shape, classes, net)
    return encoder, head.requires_grad_(False)


def make_frozen_net(
    shape: tuple[int, ...], classes: int, net: object
) -> tuple[nn.Module, nn.Module]:
    """Make a net of which nothing is trained."""
    encoder, head = make_net(shape, classes, net)
    return encoder.requires_grad_(False), head.requires_grad_(False)


def train(settings: Settings, request: RoundRequest, *, at_once: bool) -> Iterator[ClientUpdate]:
    """Train the clients of a round by either of the two ways."""
    return RoundTrainer(
        build_client_parts(settings),
        request,
        at_once=settings.clients if at_once else 1,
        report_obstacle=pytest.fail,
    ).train()


def begin(settings: Settings) -> tuple[ServerState, RoundRequest]:
    """Begin the second round of a run, in which the chain is sampled."""
    flat = build_workspace_net(settings)
    state = init_run_state(settings, flat)._replace(round=1)
    examples = {k: len(select_client_images(settings, k).y) for k in range(settings.clients)}
    return state, begin_round(build_server_parts(settings), state, examples)


@pytest.mark.parametrize("at_once", [False, True], ids=["one", "at once"])
@pytest.mark.parametrize(
    "change",
    [
        {},
        {"prior.mode": "fixed"},
        {"local.clip": 0.1, "prior.scale": 1.0},
        {"local.sampler": "tests.fedcel.federation.test_round_trainer:make_heavy"},
        {"update.clip": 1.0, "update.noise": 1.0, "temperature": 0.0},
    ],
    ids=["plain", "priors", "clip", "sampler", "update noise"],
)
def test_frozen_parameters_stay_on_clients_and_server(
    change: dict[str, Any], at_once: bool
) -> None:
    """Their deltas are exactly 0, every other parameter moves; so it is in the next model."""
    settings = parse_settings(BASE | change)
    state, request = begin(settings)
    updates = list(train(settings, request, at_once=at_once))
    for update in updates:
        assert not update.delta[:FROZEN].any()
        assert update.delta[FROZEN:].all()
    following, _ = finish_round(
        build_server_parts(settings),
        state,
        request,
        updates[:3],
        device_size=build_workspace_net(settings).device_size,
        used=[0, 1, 2],
    )
    assert torch.equal(following.model[:FROZEN], state.model[:FROZEN])
    assert not torch.equal(following.model[FROZEN:], state.model[FROZEN:])


def make_model(num_classes: int) -> nn.Module:
    """Make a model that is cut behind its first layer."""
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(72, num_classes))


@pytest.mark.parametrize("at_once", [False, True], ids=["one", "at once"])
@pytest.mark.parametrize(("features", "sent"), [(0, 73 * 10), (36, 3 + 4 + 73 * 10)])
def test_constants_of_a_model_that_is_cut_are_not_sent(
    features: int, sent: int, at_once: bool
) -> None:
    """Updates and models hold the head, and the adapter if there is one."""
    net = {"net.name": f"{HERE}:make_model", "net.cut": "0", "net.frozen": "encoder"}
    settings = parse_settings(BASE | net | {"net.features": features, "local.rate": 0.01})
    state, request = begin(settings)
    assert state.model.numel() == sent
    for update in train(settings, request, at_once=at_once):
        assert update.delta.numel() == sent and update.delta.all()


def test_clients_at_once_are_those_one_by_one() -> None:
    """Without update noise, which has no seed."""
    change = {"net.name": f"{HERE}:make_net", "temperature": 1.0, "chain.scope": "full"}
    assert compare({**change, "chain.burn-in": 0.1, "cel.ramp": 0.0}, first=4) == []


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"net.name": f"{HERE}:make_frozen_net"}, "must be trained; all have requires_grad=False"),
        ({"net.name": f"{HERE}:make_frozen_head", "chain.scope": "head"}, "parameters of the head"),
    ],
    ids=["net", "head"],
)
def test_a_net_without_a_trained_parameter_is_refused(change: dict[str, Any], line: str) -> None:
    """Before anything is trained; so is a frozen head that a chain is to sample."""
    with pytest.raises((NetError, PluginError), match=line):
        build_workspace_net(parse_settings(BASE | change))


def test_a_frozen_head_is_allowed_where_the_encoder_is_trained() -> None:
    """The whole net is the chain's then."""
    settings = parse_settings(BASE | {"net.name": f"{HERE}:make_frozen_head"})
    _, request = begin(settings)
    (update, *_) = train(settings, request, at_once=False)
    assert update.delta.count_nonzero() == 16 * 8 + 8
