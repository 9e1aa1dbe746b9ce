"""A loss of channels' means: what it sees, whom it moves, where it is refused."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedcel.errors import NetError, SettingsError
from fedcel.losses import Batch, LossTerm, WeightedTerm
from fedcel.losses.cel import CEL, THRESHOLD_SHARE, ClusterCEL, CutShape, Plain, State, Term
from fedcel.nets import Cnn, Vgg11, build_net
from fedcel.run_parts import build_terms, build_workspace_net, init_run_state
from fedcel.settings import parse_settings
from tests.fedcel.losses.single import Single, options, split_features

HERE = __name__
RAW = {"net.name": f"{HERE}:make_net", "net.features": 12, "cel.kind": "plain", "cel.pool": "mean"}


def pool(options: CEL, features: int, positions: int) -> Single:
    """Return the loss of one client, of channels' means."""
    return Single(Seen(options.bind(CutShape(3, features, 0.3, positions))))


class Seen(LossTerm):
    """A term of features as a client's steps show them to it."""

    def __init__(self, term: LossTerm) -> None:
        self.weighted = WeightedTerm("cel", term, 1.0)

    def refresh(self, state: State | None, read_features: Any, generators: Any) -> State:
        streams = [lambda purpose, own=own: own for own in generators]
        return self.weighted.refresh(state, lambda *_: read_features(), streams)

    def loss(self, state: State, batch: Batch, measure: bool) -> Term:
        return self.weighted.loss(state, batch, measure)


class Convolution(nn.Sequential):
    """Three channels of 2x2 positions of an 8x8 image."""

    positions = 4

    def __init__(self) -> None:
        super().__init__(nn.Conv2d(1, 3, 4, stride=4), nn.Flatten(), nn.Sigmoid())


def make_net(shape: tuple[int, ...], classes: int, net: Any) -> tuple[nn.Module, nn.Module]:
    return Convolution(), nn.Linear(12, classes)


def make_dense(shape: tuple[int, ...], classes: int, net: Any) -> tuple[nn.Module, nn.Module]:
    """Make a net whose encoder says nothing of positions."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.Sigmoid()), nn.Linear(12, classes)


def make_wrong(shape: tuple[int, ...], classes: int, net: Any) -> tuple[nn.Module, nn.Module]:
    """Make a net whose encoder claims positions that do not divide its features."""
    encoder, head = make_net(shape, classes, net)
    encoder.positions = 5  # type: ignore[assignment]
    return encoder, head


def maps(count: int = 30) -> tuple[Tensor, Tensor]:
    """Return maps of three channels and 2x2 positions, of three classes."""
    return torch.rand(count, 3, 2, 2, generator=torch.Generator().manual_seed(1)), torch.arange(
        count
    ) % 3


def test_it_is_the_modules_loss_of_maps_to_the_bit() -> None:
    """`ClusterCEL(pool="mean")` of (B, C, H, W) and a client's loss of the same, flattened."""
    z, y = maps()
    cel = ClusterCEL(classes=3, clusters=2, pool="mean")
    pooled = pool(options(kind="cluster", clusters=2, pool="mean"), 12, positions=4)
    cel.refresh(z, y, torch.Generator().manual_seed(3))
    state = pooled.refresh(None, split_features(z.flatten(1), y), torch.Generator().manual_seed(3))
    assert torch.equal(pooled.loss(state, z.flatten(1), y).loss, cel(z, y))


def test_positions_may_differ_as_long_as_their_mean_does_not() -> None:
    """What moves within a channel alone costs nothing, and gets no gradient."""
    z, y = torch.zeros(4, 4), torch.zeros(4, dtype=torch.long)
    z[:, 0], z[:, 1] = torch.arange(4.0), -torch.arange(4.0)
    loss = pool(Plain(penalty="linear", pool="mean"), 4, positions=2)
    z.requires_grad_()
    value = loss.loss({}, z, y).loss
    assert value.item() == 0
    assert not torch.autograd.grad(value, z)[0].any()
    shifted = loss.loss({}, z.detach() + torch.arange(4.0)[:, None], y).loss
    assert shifted.item() == pytest.approx(2 * 1.25)


def test_a_clients_loss_and_its_threshold_see_the_channels() -> None:
    """Three values of twelve: penalty, statistics, and the tau that a target starts from."""
    steered = {"cel.penalty": "log", "cel.target": "spread", "cel.kind": "cluster"}
    settings = parse_settings(RAW | steered)
    flat = build_workspace_net(settings)
    assert flat.net.positions == 4
    (weighted,) = build_terms(settings)
    z, y = maps()
    seen = Seen(weighted.term)
    state = Single(seen).refresh(None, split_features(z.flatten(1), y), torch.Generator())
    assert state["centres"].shape == (10, 1, 3)
    control = init_run_state(settings, flat).threshold
    assert control is not None
    assert control == pytest.approx(THRESHOLD_SHARE * 0.3**2 * 3)


def test_vgg_has_the_positions_of_its_maps() -> None:
    """8x8 after two blocks of 32x32 images; dense cuts have one."""
    stream = torch.Generator().manual_seed(0)
    settings = Vgg11(features=512, width=16)
    assert build_net(settings, (3, 32, 32), 10, stream).positions == 64
    assert build_net(Cnn(), (1, 28, 28), 10, stream).positions == 1


@pytest.mark.parametrize("name", ["mlp", "cnn", "strided"])
def test_features_without_positions_are_refused_at_the_door(name: str) -> None:
    """Of the nets that end in a dense layer; without a loss the setting means nothing."""
    raw = {"cel.kind": "plain", "cel.pool": "mean", "net.name": name}
    with pytest.raises(SettingsError, match=f"net.name '{name}', whose features have no positions"):
        parse_settings(raw)
    parse_settings(raw | {"cel.kind": "none"})


def test_an_encoder_that_says_nothing_is_refused_when_it_is_built() -> None:
    """A user's own; so is one whose positions do not divide its features."""
    with pytest.raises(SettingsError, match="the encoder has no `positions` above 1"):
        build_terms(parse_settings(RAW | {"net.name": f"{HERE}:make_dense"}))
    with pytest.raises(NetError, match="`positions` is 5, must be a divisor of its 12 features"):
        build_workspace_net(parse_settings(RAW | {"net.name": f"{HERE}:make_wrong"}))
