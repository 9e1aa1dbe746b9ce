"""Attacks on a GPU, stood in for by a device that mixes with no other and computes the same."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from fedcel.attacks import averaging, decoder
from fedcel.attacks.attack import Attack
from fedcel.attacks.averaging import Averaging, RepeatedObservation, move_to_device
from fedcel.attacks.decoder import Decoder, apply_network, build_decoder_network
from fedcel.attacks.pixel_descent import RMLE, HybridInversion
from fedcel.attacks.score_card import mse
from fedcel.data.images import Images
from fedcel.leakage import SmashedData
from fedcel.nets import Strided
from fedcel.nets.cut import Cut
from fedcel.nets.device import CPU, fastest_device
from fedcel.nets.split_net import SplitNet
from tests.fedcel.elsewhere import ELSEWHERE, pretended
from tests.fedcel.seeded import seeded

ATTACKS = [Decoder(), RMLE(), HybridInversion()]


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let attacks believe in a GPU."""
    with pretended(monkeypatch, decoder, averaging):
        yield


def net() -> SplitNet:
    """Return an untrained net for 3x32x32."""
    encoder, head = Strided().build((3, 32, 32), 10)
    return SplitNet(encoder, head, Cut(sigma=0.1, dropout=0.2), 64)


@pytest.mark.parametrize(
    ("attack", "repeats"), [(Decoder(), 1), (Decoder(), 2), (RMLE(), 2), (HybridInversion(), 1)]
)
def test_images_come_back_to_the_processor(
    attack: Attack, repeats: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same ones, of steps in float32, and no operation takes tensors of two devices."""
    monkeypatch.setattr(decoder, "fast_precision", lambda net, device: torch.float32)
    one = SmashedData(net())
    own = Images(torch.rand(40, 3, 32, 32), torch.zeros(40, dtype=torch.int64))
    here = rebuilt(attack, one, own, repeats)
    with pretended(monkeypatch, decoder, averaging):
        there = rebuilt(attack, one, own, repeats)
    assert there.device == CPU
    assert there.shape == (5, 3, 32, 32)
    torch.testing.assert_close(here, there, atol=1e-4, rtol=0)  # sums of gradients of gradients
    assert one.net.encode(own.x[:1]).device == CPU  # the observation itself has not moved


def rebuilt(attack: Attack, one: SmashedData, own: Images, repeats: int) -> Tensor:
    stream = seeded(0)
    seen, asked = (RepeatedObservation(one, repeats), Averaging(attack, repeats))
    return asked.reconstruct(seen, own, seen.sample(own.x[:5], stream), 0.01, stream)


@pytest.mark.usefixtures("gpu")
def test_a_net_stays_on_the_gpu_and_its_images_go_where_the_inputs_are() -> None:
    """Standardisation moves with the weights."""
    seen = torch.rand(8, 64)
    made = build_decoder_network(seen, (1, 8, 8), torch.Generator()).to(ELSEWHERE)
    assert apply_network(made, seen).device == CPU
    assert apply_network(made, seen.to(ELSEWHERE)).device == ELSEWHERE


@pytest.mark.usefixtures("gpu")
def test_an_observation_without_a_net_of_ours_stays() -> None:
    """A user's own one computes wherever it likes."""

    class Own:
        name = "own"
        grants: frozenset[str] = frozenset()

        def sample(self, images: Tensor, generator: torch.Generator) -> Tensor:
            return images.flatten(1)

        def mean(self, images: Tensor) -> Tensor:
            return images.flatten(1)

    own = Own()
    assert move_to_device(own) == (own, CPU)
    there, place = move_to_device(SmashedData(net()))
    assert place == ELSEWHERE
    assert there.mean(torch.rand(1, 3, 32, 32).to(ELSEWHERE)).device == ELSEWHERE


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch sees no GPU here")
@pytest.mark.parametrize("attack", ATTACKS)
def test_a_gpu_rebuilds_as_well(attack: Attack, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is the same up to what the order of sums may turn over; only where there is one."""
    one, own = SmashedData(net()), Images(torch.rand(40, 3, 32, 32), torch.zeros(40).long())
    errors = []
    for place in (fastest_device(one.net), CPU):
        for module in (decoder, averaging):
            monkeypatch.setattr(module, "fastest_device", lambda net, place=place: place)
        stream = seeded(0)
        made = attack.reconstruct(one, own, one.sample(own.x[:5], stream), 0.1, stream)
        errors.append(mse(made, own.x[:5]))
    assert errors[0] == pytest.approx(errors[1], rel=0.05)
