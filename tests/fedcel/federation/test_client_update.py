"""One client: what it computes from its own images alone."""

import pytest
import torch

from fedcel.federation import ClientUpdate, protect_update
from fedcel.privacy import UpdateSettings
from fedcel.run_parts import build_workspace_net
from fedcel.settings import parse_settings
from tests.fedcel.train_one import update_one


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
