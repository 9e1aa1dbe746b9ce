"""One client: what it computes from its own images alone."""

import pytest
import torch

from fedcel.federation import (
    ClientUpdate,
    compute_client_gradient,
    protect_update,
)
from fedcel.privacy import UpdateSettings
from fedcel.run_parts import build_client_parts, build_workspace_net
from fedcel.settings import parse_settings
from tests.fedcel.train_one import update_one


def test_a_small_client_gives_its_gradient_under_a_narrow_prior() -> None:
    """The prior divides by all images, not by its own; and what stands still is not told."""
    s = parse_settings({"prior.scale": 0.05, "local.control": "fresh", "rounds": 10})
    flat = build_workspace_net(s)
    start = flat.vector.clone()
    parts = build_client_parts(s)
    early, late = (compute_client_gradient(parts, number, start, 0) for number in (1, 10))
    assert early[: flat.device_size].any()
    assert not late[: flat.device_size].any()
    assert late[flat.device_size :].any()


def test_an_update_depends_on_no_workspace() -> None:
    """Whatever an earlier use left in the net's parameters: same delta and state."""
    s = parse_settings({"cel.kind": "cluster", "cel.warm-up": 0, "local.steps": 3})
    flat = build_workspace_net(s)
    start = flat.vector.clone()
    first = update_one(s, 0, 0.1, number=20, total=1000, model=start)
    flat.vector.fill_(torch.nan)
    flat._gradients.fill_(torch.nan)
    second = update_one(s, 0, 0.1, number=20, total=1000, model=start)
    assert torch.equal(first.delta, second.delta)
    assert first.state.keys() == second.state.keys()
    assert all(torch.equal(first.state[name], second.state[name]) for name in first.state)


def test_noise_without_a_clip_lets_nothing_leave() -> None:
    """The settings refuse it; an update that came by another way is not sent as it is."""
    update = ClientUpdate(torch.ones(3), torch.ones(3), {}, {})
    unclipped = UpdateSettings.model_construct(clip="none", noise=1.0)
    with pytest.raises(AssertionError):
        protect_update(unclipped, update, torch.zeros(3))
