"""From names to what acts: the net, the cut and the loss of each defence."""

from typing import ClassVar

import pytest
import torch

from fedcel.errors import PluginError, SettingsError
from fedcel.losses import Batch, ClientLoss, ClientLossTerm
from fedcel.losses.defences import (
    CEB,
    VIB,
    Adversarial,
    FisherNoise,
    InformationBottleneck,
    LearnedNoise,
    NoPeek,
)
from fedcel.losses.protocol import CutShape, State, Term
from fedcel.nets import SplitNet, build_net
from fedcel.nets.cut import Cut
from fedcel.run_parts import build_terms
from fedcel.settings import Settings, parse_settings

SHAPE = (1, 8, 8)


def named(name: str, strength: float = 0.5) -> Settings:
    return parse_settings({"defence.name": name, "defence.strength": strength, "net.noise": 0.1})


def bind(s: Settings, shape: tuple[int, ...] = SHAPE) -> object:
    """Return the loss of the defence, for ten classes."""
    sigma = s.defence.find_sigma(s.net)
    cut = CutShape(10, s.net.features, sigma, image=shape)
    term = s.defence.make_term(cut, s)
    return None if term is None else term.term


def build(s: Settings) -> SplitNet:
    """Return the net that the defence needs, with its cut."""
    cut = s.defence.build_cut(s.net)
    net, shape = s.defence.adapt_net(s.net), s.defence.noise_shape
    return build_net(net, SHAPE, 10, torch.Generator(), cut=cut, noise_shape=shape)


class Mine(ClientLoss):
    """A user's defence that remembers what it was made from."""

    made: ClassVar[tuple[Settings, tuple[int, ...]]]

    def __init__(self, settings: Settings, shape: tuple[int, ...]) -> None:
        Mine.made = settings, shape

    def loss(self, state: State, batch: Batch, measure: bool = True) -> Term:
        return Term(batch.z.square().mean(), {})


def useless(settings: Settings, shape: tuple[int, ...]) -> str:
    return "nothing"


@pytest.mark.parametrize(
    ("name", "cut", "kind"),
    [
        ("noise", Cut(0.5), type(None)),
        ("bottleneck", Cut(0.1), type(None)),
        ("dropout", Cut(0.1, 0.5), type(None)),
        ("nopeek", Cut(0.1), NoPeek),
        ("adversarial", Cut(0.1), Adversarial),
        ("learned-noise", Cut(0.1), LearnedNoise),
        ("fisher-noise", Cut(0.1), FisherNoise),
        ("vib", Cut(0.1), VIB),
        ("ceb", Cut(0.1), CEB),
    ],
)
def test_each_name(name: str, cut: Cut, kind: type) -> None:
    """Its cut in training and in use, and its loss."""
    s = named(name, 3.0 if name == "bottleneck" else 0.5)
    assert s.defence.build_cut(s.net) == cut
    assert type(bind(s)) is kind
    assert s.defence.adapt_net(s.net).features == (3 if name == "bottleneck" else 64)


def test_without_a_defence() -> None:
    """All is as the net's settings say."""
    s = parse_settings({"net.noise": 0.2})
    assert (
        s.defence.build_cut(s.net),
        s.defence.adapt_net(s.net),
        bind(s),
    ) == (Cut(0.2), s.net, None)


def test_the_adversary_is_of_the_cut_and_the_images() -> None:
    """D values in, as many as an image has out."""
    adversary = bind(named("adversarial"), (3, 4, 5))
    assert isinstance(adversary, Adversarial)
    assert adversary.widths == [64, 256, 256, 60]


def test_a_bottleneck_narrows_the_net_that_is_built() -> None:
    """Messages of as many values as the strength says, from the encoder on."""
    s = named("bottleneck", 3.0)
    net = build(s)
    assert net.features == 3
    assert net.encode(torch.zeros(2, *SHAPE)).shape == (2, 3)


def test_a_users_defence() -> None:
    """Called with all settings and the shape of the images; its cut is the net's."""
    s = named(f"{__name__}:Mine")
    made = bind(s)
    assert isinstance(made, ClientLossTerm)
    z = torch.arange(3.0)[None, :, None]
    batch = Batch(torch.zeros(1, 3, *SHAPE), z, z, torch.zeros(1, 3, dtype=torch.long))
    assert made.loss({}, batch, True).loss == 5 / 3
    assert Mine.made == (s, SHAPE)
    assert s.defence.build_cut(s.net) == Cut(0.1)


def test_a_users_loss_that_would_never_act_is_refused() -> None:
    """Five rounds end before the ramp does; what only transforms has no ramp."""
    s = parse_settings({"defence.name": f"{__name__}:Mine", "defence.strength": 1, "rounds": 5})
    with pytest.raises(SettingsError, match="Mine', .* must have its full weight by then"):
        build_terms(s)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (f"{__name__}:SHAPE", "cannot be called; name a class or a function"),
        (
            f"{__name__}:useless",
            "made 'nothing', which lacks refresh, loss or update, or transform",
        ),
        (f"{__name__}:Yours", "no 'Yours'"),
        ("no.such.package:Mine", "no module 'no'"),
    ],
)
def test_refusals_name_the_part(name: str, message: str) -> None:
    """Before any training."""
    with pytest.raises(PluginError, match=message):
        bind(named(name))


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("none", "one"),
        ("learned-noise", "feature"),
        ("fisher-noise", "feature"),
        ("vib", "image"),
        ("ceb", "image"),
    ],
)
def test_noise_is_learned_where_the_defence_needs_it(name: str, shape: str) -> None:
    """The net that is built has the scale, with its limit."""
    net = build(parse_settings({"defence.name": name}))
    scale = net.noise_scale
    assert (scale is None) == (shape == "one")
    assert net.noise_shape == shape
    assert scale is None or scale.log_limit == pytest.approx(2.0794, abs=1e-4)


@pytest.mark.parametrize(
    ("keys", "groups", "centre", "deviation"),
    [
        ({"defence.name": "vib"}, 1, 0.5, 0.416333),
        ({"defence.name": "ceb"}, 10, 0.5, 0.416333),
    ],
)
def test_the_gaussians_of_a_bottleneck(
    keys: dict[str, object], groups: int, centre: float, deviation: float
) -> None:
    """One, or one a class; at its start as wide as features within their bound, noise included."""
    made = bind(parse_settings(keys))
    assert isinstance(made, InformationBottleneck)
    means, logs = made.draw_theta(torch.Generator()).view(2, groups, 64)
    assert torch.all(means == centre)
    torch.testing.assert_close(logs.exp(), torch.full_like(logs, deviation))


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"defence.name": "vib", "net.noise": 0.0}, r"net\.noise is 0 and defence\.name 'vib'"),
        ({"defence.name": "fisher-noise", "net.noise": 0.0}, "whose loss needs the noise"),
        ({"defence.name": "ceb", "cel.warm-up": 100}, "burn-in ends after"),
        ({"defence.name": "ceb", "defence.strength": 0.0}, "must be above 0 for 'ceb'"),
    ],
)
def test_what_nobody_can_learn_is_refused(keys: dict[str, object], words: str) -> None:
    """Noise there is none of, of no known law, or on a schedule that never acts."""
    with pytest.raises(SettingsError, match=words):
        parse_settings(keys)
