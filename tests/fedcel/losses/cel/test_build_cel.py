"""From settings to a loss."""

import pytest
import torch

from fedcel.errors import PluginError, SettingsError
from fedcel.federation import client_update
from fedcel.losses.cel import (
    Gated,
    Hybrid,
    MutualInformation,
    Penalty,
    Plain,
    build_cel,
    spread_penalties,
)
from fedcel.losses.protocol import State, split_features
from fedcel.settings import CelSettings, parse_settings


def test_settings_reach_the_parts() -> None:
    """Every option of the attention, and the bound."""
    chosen = CelSettings(kind="hybrid", attention="floor", floor=0.3, entropy=0.2)
    made = build_cel(chosen, 0.3, 64, 10)
    assert isinstance(made, Hybrid)
    assert (made.gated.attention, made.gated.floor, made.gated.entropy) == ("floor", 0.3, 0.2)
    assert isinstance(build_cel(CelSettings(kind="gated"), 0.3, 64, 10), Gated)
    chosen = CelSettings(kind="mutual-information", share="none", bound="lower")
    assert build_cel(chosen, 0.6, 64, 10) == MutualInformation(0.6, "none", 10, "lower")


def test_refusals() -> None:
    """Sigma 0 by the loss's own name, and a bonus for an attention that stays."""
    with pytest.raises(SettingsError, match="mutual-information"):
        build_cel(CelSettings(kind="mutual-information"), 0.0, 64, 10)
    with pytest.raises(SettingsError, match=r"cel\.entropy is 0\.5"):
        build_cel(CelSettings(kind="gated", attention="detach", entropy=0.5), 0.3, 64, 10)


def mine(cel: CelSettings, penalty: Penalty, features: int, classes: int) -> object:
    """Return a loss of one's own."""
    return Plain(penalty, cel.share, classes)


def nothing(cel: CelSettings, penalty: object, features: int, classes: int) -> object:
    """Return what is no loss."""
    return features


def test_own_kinds() -> None:
    """An import string is built, and refused when it makes no loss."""
    built = build_cel(CelSettings(kind=f"{__name__}:mine"), 0.0001, 64, 10)
    z, y = torch.randn(6, 64, generator=torch.Generator().manual_seed(1)), torch.arange(6) % 3
    penalty = spread_penalties.build_penalty(CelSettings(), 0.0001, 64)
    assert built is not None
    expected = Plain(penalty, CelSettings().share, 10).loss({}, z, y).loss
    assert built.loss({}, z, y).loss == expected
    with pytest.raises(PluginError, match="64, which lacks"):
        build_cel(CelSettings(kind=f"{__name__}:nothing"), 0.3, 64, 10)
    with pytest.raises(PluginError, match="cannot be called"):
        build_cel(CelSettings(kind=f"{__name__}:__doc__"), 0.3, 64, 10)


@pytest.mark.parametrize("kind", ["gated", "hybrid"])
def test_no_attention_before_the_loss_acts(kind: str) -> None:
    """Up to the end of warm-up a client stores nothing; then theta and Adam's moments appear."""
    cel = {"kind": kind, "warm-up": 2, "clusters": 2}
    settings = parse_settings({"cel": cel, "local": {"steps": 2}, "rounds": 20})
    model = client_update.build_workspace_net(settings).vector.clone()
    state: State | None = None
    has_theta = []
    for number in range(1, 5):
        inputs = client_update.RoundInputs(number, model, 997)
        (update,) = client_update.update_clients(
            settings, {0: 0.1}, inputs, read_state=lambda client, known=state: known
        )
        state = update.state
        has_theta.append(any(name.endswith("theta") for name in state))
    assert has_theta[:2] == [False, False]
    assert has_theta[-1]


def test_pieces_are_all_features() -> None:
    """Pieces of any size give the features back, each time anew."""
    z, y = torch.arange(5.0)[:, None], torch.arange(5)
    batches = split_features(z, y, 2)
    for _ in range(2):
        assert torch.equal(torch.cat([part for part, _ in batches()]), z)
