"""From names to what acts: the net, the cut and the loss of each defence."""

from typing import ClassVar

import pytest
import torch
from torch import Tensor

from fedcel.errors import PluginError, SettingsError
from fedcel.losses import defences
from fedcel.losses.cel.protocol import State, Term
from fedcel.losses.defences import Adversarial, Defence, NoPeek
from fedcel.losses.defences.build_defence import DEFENCE_BUILDERS
from fedcel.nets import split_net
from fedcel.nets.cut import Cut
from fedcel.settings import DEFENCES, Settings, parse_settings

SHAPE = (1, 8, 8)


def named(name: str, strength: float = 0.5, **more: float) -> Settings:
    """Return settings with a defence of that name."""
    keys = {f"defence.{key}": value for key, value in more.items()}
    return parse_settings(
        {"defence.name": name, "defence.strength": strength, "net.noise": 0.1, **keys}
    )


class Mine:
    """A user's defence that remembers what it was made from."""

    made: ClassVar[tuple[Settings, tuple[int, ...]]]

    def __init__(self, settings: Settings, shape: tuple[int, ...]) -> None:
        Mine.made = settings, shape

    def refresh(self, state: State | None, generator: torch.Generator) -> State:
        """Return no state."""
        return {}

    def loss(
        self, state: State, x: Tensor, z: Tensor, message: Tensor, measure: bool = True
    ) -> Term:
        """Return the mean square."""
        return Term(z.square().mean(), {})

    def step(self, state: State) -> State:
        """Return the state."""
        return state


def useless(settings: Settings, shape: tuple[int, ...]) -> str:
    """Return what is no defence."""
    return "nothing"


@pytest.mark.parametrize(
    ("name", "cut", "kind"),
    [
        ("noise", Cut(0.5), type(None)),
        ("bottleneck", Cut(0.1), type(None)),
        ("dropout", Cut(0.1, 0.5), type(None)),
        ("nopeek", Cut(0.1), NoPeek),
        ("adversarial", Cut(0.1), Adversarial),
        ("noise+nopeek", Cut(0.7), NoPeek),
        ("noise+adversarial", Cut(0.7), Adversarial),
    ],
)
def test_each_name(name: str, cut: Cut, kind: type) -> None:
    """Its cut in training and in use, and its loss."""
    s = named(name, 3.0 if name == "bottleneck" else 0.5, noise=0.7)
    assert defences.build_cut(s) == cut
    assert type(defences.build_defence(s, SHAPE)) is kind
    assert defences.defended_net_settings(s).features == (3 if name == "bottleneck" else 64)


def test_without_a_defence() -> None:
    """All is as the net's settings say."""
    s = parse_settings({"net.noise": 0.2})
    assert (
        defences.build_cut(s),
        defences.defended_net_settings(s),
        defences.build_defence(s, SHAPE),
    ) == (Cut(0.2), s.net, None)


def test_every_name_can_be_built() -> None:
    """None is promised by the settings alone."""
    tested = {"noise", "bottleneck", "dropout", "none", *DEFENCE_BUILDERS}
    assert {name.removeprefix("noise+") for name in DEFENCES} == tested


def test_the_adversary_is_of_the_settings_and_the_images() -> None:
    """Shape, D, width and rate."""
    s = named("adversarial", width=9, rate=0.02)
    assert defences.build_defence(s, (3, 4, 5)) == Adversarial((3, 4, 5), 64, 9, 0.02)


def test_a_bottleneck_narrows_the_net_that_is_built() -> None:
    """Messages of as many values as the strength says, from the encoder on."""
    s = named("bottleneck", 3.0)
    net = split_net.build_net(
        defences.defended_net_settings(s), SHAPE, 10, torch.Generator(), cut=defences.build_cut(s)
    )
    assert net.features == 3
    assert net.encode(torch.zeros(2, *SHAPE)).shape == (2, 3)


def test_a_users_defence() -> None:
    """Called with all settings and the shape of the images; its cut is the net's."""
    s = named(f"{__name__}:Mine")
    made = defences.build_defence(s, SHAPE)
    assert isinstance(made, Defence)
    z = torch.arange(3.0)[:, None]
    assert made.loss({}, torch.zeros(3, *SHAPE), z, z).loss == 5 / 3
    assert Mine.made == (s, SHAPE)
    assert defences.build_cut(s) == Cut(0.1)


def test_a_users_loss_that_would_never_act_is_refused() -> None:
    """Five rounds end before the ramp does; what only transforms has no ramp."""
    s = parse_settings({"defence.name": f"{__name__}:Mine", "defence.strength": 1, "rounds": 5})
    with pytest.raises(SettingsError, match="Mine', .* must be fully on by then"):
        defences.build_defence(s, SHAPE)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (f"{__name__}:SHAPE", "cannot be called; name a class or a function"),
        (f"{__name__}:useless", "made 'nothing', which lacks refresh, loss or step"),
        (f"{__name__}:Yours", "no 'Yours'"),
        ("no.such.package:Mine", "no module 'no'"),
    ],
)
def test_refusals_name_the_part(name: str, message: str) -> None:
    """Before any training."""
    with pytest.raises(PluginError, match=message):
        defences.build_defence(named(name), SHAPE)
