"""A user's net that breaks its contract is refused before a run, by its import string."""

from collections.abc import Callable
from functools import partial
from math import prod

import pytest
import torch
from torch import Tensor, nn

from fedcel.errors import ContractError, FedcelError, NetError, PluginError
from fedcel.nets import (
    NET_TESTS,
    Cut,
    ImportedNet,
    NetCase,
    SplitNet,
    build_net,
    initialise_parameters,
)
from fedcel.settings import NetSettings
from tests.fedcel.seeded import seeded

Halves = tuple[nn.Module, nn.Module]
COUNTER = torch.Generator()


def sound(shape: tuple[int, ...], classes: int, net: NetSettings, *more: nn.Module) -> Halves:
    """Return a linear encoder and head."""
    first = nn.Linear(prod(shape), net.features)
    encoder = nn.Sequential(nn.Flatten(), first, *more, nn.Sigmoid())
    return encoder, nn.Linear(net.features, classes)


class Apply(nn.Module):
    """A layer of a function."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.forward = function


class Idle(nn.Module):
    """Has a parameter that nothing reads."""

    def __init__(self) -> None:
        super().__init__()
        self.idle = nn.Parameter(torch.ones(2))

    def forward(self, z: Tensor) -> Tensor:
        return z


def fail(z: Tensor) -> Tensor:
    raise KeyError("layer seven")


def add_layer(layer: Callable[[], nn.Module]) -> Callable[..., Halves]:
    """Return what builds the net with one more layer."""
    return lambda shape, classes, net: sound(shape, classes, net, layer())


centre = partial(Apply, lambda z: z - z.mean(0, keepdim=True))
centred, idle = add_layer(centre), add_layer(Idle)
noisy = add_layer(lambda: Apply(lambda z: z + 1e-6 * torch.randn(z.shape, generator=COUNTER)))
crashing = add_layer(lambda: Apply(fail))


def black(shape: tuple[int, ...], classes: int, net: NetSettings) -> Halves:
    """Return an encoder that black images break."""
    encoder, head = sound(shape, classes, net)
    return nn.Sequential(nn.Flatten(), Apply(lambda x: x / x.amax(1, keepdim=True)), encoder), head


def seedless(shape: tuple[int, ...], classes: int, net: NetSettings) -> Halves:
    """Return an encoder whose last layer is drawn from elsewhere."""
    scale = nn.PReLU()
    scale.weight.data.uniform_(generator=COUNTER)
    return sound(shape, classes, net, scale)


def restless(shape: tuple[int, ...], classes: int, net: NetSettings) -> Halves:
    """Return an encoder of whole batches, and a head that works in place."""
    encoder, head = sound(shape, classes, net, centre())
    return encoder, nn.Sequential(nn.Threshold(0.5, 0.0, inplace=True), head)


def failing(shape: tuple[int, ...], classes: int, net: NetSettings) -> Halves:
    raise IndexError("no such width")


BROKEN: dict[str, tuple[type[FedcelError], str]] = {
    "centred": (PluginError, "breaks .*must encode each image by itself"),
    "noisy": (PluginError, "breaks .*must draw nothing at random"),
    "black": (PluginError, "breaks .*must be finite, of black and white images too"),
    "idle": (PluginError, "breaks .*'encoder.2.idle' is none: it has no part"),
    "seedless": (PluginError, "breaks .*the seed alone must decide the parameters"),
    "restless": (
        PluginError,
        "head must leave what it is given .*; the encoder must encode each image by",
    ),
    "crashing": (NetError, r"failed: KeyError: 'layer seven' \(.*test_net_contract.py, line"),
    "failing": (NetError, r"failed: IndexError: no such width \(.*test_net_contract.py, line"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_net_that_breaks_its_contract_is_refused(name: str) -> None:
    """By setting, import string, the line of the contract, and the suite that shows it."""
    kind, words = BROKEN[name]
    net = ImportedNet(name=f"{__name__}:{name}", features=6)
    with pytest.raises(kind, match=f"net.name '{__name__}:{name}'.*{words}") as refusal:
        build_net(net, (1, 4, 4), 3, torch.Generator())
    assert "fedcel.testing.check_net" in str(refusal.value)


def test_a_sound_net_is_let_through() -> None:
    """With the parameters of the seed."""
    net = ImportedNet(name=f"{__name__}:sound", features=6)
    built = build_net(net, (1, 4, 4), 3, seeded(1))
    assert built.features == 6


def split(encoder: nn.Module, head: nn.Module) -> SplitNet:
    """Return a net of 6 features."""
    return SplitNet(encoder, head, Cut(), 6)


def linear(seed: int, *more: nn.Module, inputs: int = 16) -> SplitNet:
    first, second = nn.Linear(inputs, 6), nn.Linear(6, 3)
    net = split(nn.Sequential(nn.Flatten(), first, *more, nn.Tanh()), second)
    initialise_parameters(net, seeded(seed))
    return net


def shared(seed: int) -> SplitNet:
    """Return a net whose encoder and head have one layer in common."""
    layer = nn.Linear(6, 6)
    net = linear(seed, layer)
    return split(net.encoder, nn.Sequential(layer, net.head))


class Sealed(nn.Linear):
    """A layer whose copies share its parameters."""

    def __deepcopy__(self, memo: object) -> "Sealed":
        return self


TESTED: dict[str, tuple[Callable[[int], SplitNet], str]] = {
    "other_seed": (lambda seed: linear(1), "another seed must give other parameters"),
    "slopes": (shared, "no parameter may belong to encoder and head at once"),
    "learning": (lambda seed: split(linear(seed).encoder, Apply(lambda z: 1e-9 * z)), "by a tenth"),
    "bound": (lambda seed: split(linear(seed).encoder[:-1], nn.Linear(6, 3)), "no noise is enough"),
    "vector": (lambda seed: split(linear(seed).encoder, Sealed(6, 3)), "a copy of the net"),
}


@pytest.mark.parametrize("name", TESTED)
def test_a_line_of_tests_alone_is_broken(name: str) -> None:
    """By a net with one fault; the same without it keeps it."""
    (check,) = (c for c in NET_TESTS if c.__name__ == f"_check_{name}")
    build, words = TESTED[name]
    check(NetCase(linear, (1, 4, 4), 3))
    with pytest.raises(ContractError, match=words):
        check(NetCase(build, (1, 4, 4), 3))
