"""Clients, one or several, on a GPU: a stand-in that mixes with no other device, or a real one."""

import pytest
import torch

from fedcel.data import Images
from fedcel.federation import ClientRound, ClientUpdate, train_clients
from fedcel.losses import WeightedTerm
from fedcel.losses.cel import State
from fedcel.nets import CPU, FlatNet, build_net
from fedcel.posterior import RoundPlan
from fedcel.settings import LocalSettings, NetSettings
from fedcel.torch_state import make_generator
from tests.fedcel.elsewhere import ELSEWHERE, Elsewhere
from tests.fedcel.nets.test_device import CLASSES, FEATURES, LOSSES, SHAPE, weighted_cel

LOCAL = LocalSettings(steps=3, batch_size=12, augment="affine,flip", balance=True, clip=1.0)
PLAN = RoundPlan(0.1, 0.1, 0.1, 0.0, False, 1.0, local=LOCAL)


def train(
    term: WeightedTerm, device: torch.device, count: int, name: str = "mlp"
) -> list[ClientUpdate]:
    """Return the second of two rounds of clients at once, everything on that can be."""
    net = NetSettings.model_validate({"name": name, "features": FEATURES, "width": 9, "noise": 0.3})
    flat = FlatNet(build_net(net, SHAPE, CLASSES, make_generator(0, "net")))
    received = flat.vector.clone()
    nets = flat.copy_to(device, count)
    states: list[State | None] = [None] * count
    for number in (1, 2):
        clients = [begin(k, number, states[k]) for k in range(count)]
        updates = train_clients(nets, received, clients, PLAN._replace(terms=(term,)))
        states = [update.state for update in updates]
    return updates


def begin(client: int, number: int, state: State | None) -> ClientRound:
    """Return what a client brings to a round; it keeps its state from the first to the second."""
    x = torch.rand(24, *SHAPE, generator=make_generator(client, "x"))
    return ClientRound(
        Images(x, torch.arange(24) % 3),
        lambda purpose: make_generator(number, purpose, client=client),
        0.01 * (client + 1),
        state,
    )


@pytest.mark.filterwarnings("ignore:attention-share")
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("name", LOSSES)
def test_clients_elsewhere_come_back_whole(name: str, count: int) -> None:
    """No operation takes tensors of two devices; the processor has the same to rounding."""
    here = train(weighted_cel(name), CPU, count)
    with Elsewhere():
        there = train(weighted_cel(name), ELSEWHERE, count)
    assert len(here) == len(there) == count
    for expected, actual in zip(here, there, strict=True):
        assert actual.delta.device == CPU
        torch.testing.assert_close(actual.delta, expected.delta, rtol=0, atol=1e-6)
        assert expected.delta.abs().max() > 1e-3
        assert actual.metrics == pytest.approx(expected.metrics, abs=1e-5)
        assert actual.state.keys() == expected.state.keys()
        assert all(tensor.device == CPU for tensor in actual.state.values())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch sees no GPU here")
@pytest.mark.parametrize("net", ["mlp", "strided"])
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("name", LOSSES)
def test_clients_on_a_gpu_are_those_of_the_processor(name: str, count: int, net: str) -> None:
    """The same draws, sums in another order."""
    term = weighted_cel(name, None)
    for expected, actual in zip(
        train(term, CPU, count, net), train(term, torch.device("cuda"), count, net), strict=True
    ):
        torch.testing.assert_close(actual.delta, expected.delta, rtol=0, atol=1e-4)
