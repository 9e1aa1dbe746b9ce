"""The adversary: it learns to decode, and what it cannot decode others cannot either."""

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from fedcel.attacks.decoder import build_decoder_network
from fedcel.data import Images
from fedcel.errors import NetError, SettingsError
from fedcel.leakage import SmashedData, optimal_leak
from fedcel.losses import WeightedTerm
from fedcel.losses.defences.adversarial import Adversarial
from fedcel.nets import Mlp, build_net
from fedcel.nets.cut import Cut
from fedcel.nets.flat_net import FlatNet
from fedcel.posterior.schedule import RoundPlan
from fedcel.settings import LocalSettings
from fedcel.torch_state import make_generator
from tests.fedcel.losses.single import bind_rival, to_term
from tests.fedcel.train_one import train_one

SHAPE = (1, 4, 4)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A decoder that is narrower, and faster to learn."""
    monkeypatch.setattr("fedcel.losses.defences.adversarial.WIDTH", 32)
    monkeypatch.setattr("fedcel.losses.defences.adversarial.Adversarial.rate", 0.01)


def adversary(shape: tuple[int, ...] = SHAPE, features: int = 4) -> Any:
    """Return the defence of images and messages of that size."""
    return bind_rival(Adversarial(), features=features, image=shape)


def batch(seed: int, shape: tuple[int, ...] = SHAPE, count: int = 6) -> tuple[Tensor, Tensor]:
    """Return images and normal messages of 4 values."""
    stream = torch.Generator().manual_seed(seed)
    return torch.rand(count, *shape, generator=stream), torch.randn(count, 4, generator=stream)


def layers(theta: Tensor, sizes: list[int]) -> nn.Sequential:
    """Return a decoder of torch's own layers that holds the values of `theta`."""
    decoder = nn.Sequential()
    for inputs, outputs in pairwise(sizes):
        decoder.extend([nn.Linear(inputs, outputs), nn.ReLU()])
    decoder[-1] = nn.Sigmoid()
    nn.utils.vector_to_parameters(theta, decoder.parameters())
    return decoder


def test_a_stored_adversary_of_another_size_is_refused() -> None:
    """More features, or larger images: it would be cut up wrongly."""
    state = adversary().refresh(None, torch.Generator())
    for other in (adversary(features=5), adversary((1, 4, 5))):
        with pytest.raises(SettingsError, match="stored adversary has"):
            other.refresh(state, torch.Generator())


@pytest.mark.parametrize("shape", [(1, 4, 4), (3, 5, 2)])
def test_it_is_torchs_network(shape: tuple[int, ...]) -> None:
    """Loss 1 - MSE, the encoder's gradient that of -MSE, the decoder's that of +MSE."""
    x, message = batch(1, shape)
    message.requires_grad_()
    mine = adversary(shape)
    state = mine.refresh(None, torch.Generator().manual_seed(2))
    theirs = layers(state["theta"].detach().clone(), mine.widths)
    mse = mse_loss(theirs(message), x.flatten(1))
    (slope,) = torch.autograd.grad(mse, message, retain_graph=True)
    steps = torch.autograd.grad(mse, list(theirs.parameters()))
    term = mine.loss(state, x, message.detach(), message)
    torch.autograd.backward(term.loss)
    torch.testing.assert_close(term.loss, 1 - mse)
    torch.testing.assert_close(term.metrics["adversary-mse"], mse.detach())
    torch.testing.assert_close(message.grad, -slope)
    torch.testing.assert_close(state["theta"].grad, torch.cat([s.flatten() for s in steps]))


def test_gradient() -> None:
    """The encoder's, by finite differences in float64."""
    x, message = (part.double() for part in batch(3))
    mine = adversary()
    state = {name: t.double() for name, t in mine.refresh(None, torch.Generator()).items()}
    assert torch.autograd.gradcheck(
        lambda z: mine.loss(state, x, z, z + 0.1).loss, message.requires_grad_()
    )


def test_it_reads_the_message_and_not_the_code() -> None:
    """What the attacker never sees has no gradient."""
    x, z = batch(4)
    z.requires_grad_()
    mine = adversary()
    term = mine.loss(mine.refresh(None, torch.Generator()), x, z, torch.ones_like(z))
    (slope,) = torch.autograd.grad(term.loss, z, allow_unused=True)
    assert slope is None


def test_theta_is_drawn_as_layers_are() -> None:
    """Within 1/sqrt(n) of each layer, from the generator alone."""
    mine = adversary()
    theta = mine.refresh(None, torch.Generator().manual_seed(1))["theta"]
    for part, inputs in zip(torch.split(theta, [160, 1056, 528]), [4, 32, 32], strict=True):
        assert 0.95 < part.abs().max() * inputs**0.5 <= 1
    again = mine.refresh(None, torch.Generator().manual_seed(1))["theta"]
    assert torch.equal(theta, again)


def test_other_features_are_refused() -> None:
    """A user's encoder may send another number of values than the settings say."""
    x, message = batch(5)
    mine = adversary(features=3)
    state = mine.refresh(None, torch.Generator())
    with pytest.raises(NetError, match=r"sends 4 values, the adversary decodes 3; set net\.feat"):
        mine.loss(state, x, message, message)


@pytest.mark.parametrize("weight", [1e-6, 1.0])
def test_it_learns_to_decode(weight: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Images that are a function of 4 values: a tenth of the mean image's error on fresh ones.

    Whatever the weight of the loss.
    """
    stream = torch.Generator().manual_seed(6)
    mixing = torch.randn(4, 16, generator=stream)
    monkeypatch.setattr("fedcel.losses.defences.adversarial.WIDTH", 64)
    monkeypatch.setattr("fedcel.losses.defences.adversarial.Adversarial.rate", 0.003)
    mine = adversary()
    state = mine.refresh(None, stream)

    def draw() -> tuple[Tensor, Tensor]:
        z = torch.randn(32, 4, generator=stream)
        return (z @ mixing).sigmoid().view(-1, *SHAPE), z

    for _ in range(500):
        x, z = draw()
        torch.autograd.backward(weight * mine.loss(state, x, z, z, measure=False).loss)
        state = mine.update(state)
    x, z = draw()
    mse = mine.loss(state, x, z, z).metrics["adversary-mse"]
    assert mse < 0.1 * (x - x.mean(0)).square().mean()


def strokes(seed: int, count: int) -> tuple[Tensor, Tensor]:
    """Return images (count, 1, 4, 4) with a label in one half, a private pattern in the other."""
    stream = torch.Generator().manual_seed(seed)
    y = torch.randint(2, (count,), generator=stream)
    private = torch.randint(2, (count, 1, 2, 1), generator=stream).float()
    public = y[:, None, None, None].float()
    return torch.cat([public.expand(-1, 1, 2, 4), private.expand(-1, 1, 2, 4)], 2), y


def trained(weight: float) -> FlatNet:
    """Return a small net trained on the strokes, with the adversary in the loss or without."""
    x, y = strokes(7, 256)
    flat = FlatNet(
        build_net(Mlp(features=4, width=16), SHAPE, 2, make_generator(1, "net"), cut=Cut(0.03))
    )
    term = WeightedTerm("defence", to_term(adversary()), weight)
    plan = RoundPlan(0.3, 0.0, 0.0, 0.0, False, 0.0)
    local = LocalSettings(steps=700, batch_size=32)
    train_one(
        flat,
        flat.vector.clone(),
        Images(x, y),
        plan=plan,
        local=local,
        streams=lambda p: make_generator(1, p),
        terms=[term] if weight else [],
    )
    return flat


def decoded(flat: FlatNet) -> float:
    """Return the MSE on fresh images of a standardising decoder trained from scratch."""
    stream = torch.Generator().manual_seed(8)
    (x, _), (fresh, _) = strokes(96, 2048), strokes(99, 512)
    surface = SmashedData(flat.net)
    decoder = build_decoder_network(surface.sample(x, stream), SHAPE, stream)
    optimiser = torch.optim.Adam(decoder.parameters(), 0.003)
    for own in torch.randint(len(x), (300, 64), generator=stream):
        optimiser.zero_grad()
        torch.autograd.backward(mse_loss(decoder(surface.sample(x[own], stream)), x[own]))
        optimiser.step()
    return mse_loss(decoder(surface.sample(fresh, stream)), fresh).item()


def accuracy(flat: FlatNet) -> float:
    """Return the share of right answers to fresh messages."""
    x, y = strokes(98, 512)
    message = flat.net.add_noise(flat.net.encode(x), torch.Generator().manual_seed(9))
    return float(torch.eq(flat.net.answer(message).argmax(1), y).double().mean())


def test_less_is_found_behind_the_defence() -> None:
    """At equal accuracy: a third of the exact bits about the private half, and of a decoder's gain.

    Guessing each of its 2 rows has an error of .25 on half of the pixels.
    """
    x, y = strokes(97, 400)
    bare, hidden = trained(0.0), trained(1.0)
    assert min(accuracy(bare), accuracy(hidden)) > 0.98
    bits = [
        optimal_leak(SmashedData(flat.net), x, y, torch.Generator()).bits_beyond_label
        for flat in (bare, hidden)
    ]
    assert bits[1] < bits[0] / 3
    assert 0.125 - decoded(hidden) < (0.125 - decoded(bare)) / 3
