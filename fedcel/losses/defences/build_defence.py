"""The defence that settings name: its loss, its cut, its net."""

from collections.abc import Callable
from functools import lru_cache
from math import sqrt

from fedcel import plugins
from fedcel.errors import PluginError
from fedcel.losses.contract import LOSS_CHECKS, guard_loss
from fedcel.losses.defences.adversarial import Adversarial
from fedcel.losses.defences.bottleneck import InformationBottleneck
from fedcel.losses.defences.contract import DefenceCase
from fedcel.losses.defences.learned_noise import LearnedNoise
from fedcel.losses.defences.nopeek import NoPeek
from fedcel.losses.defences.protocol import Defence, LawDefence, Transform
from fedcel.losses.defences.transform import append_transform
from fedcel.nets import Cut, SplitNet
from fedcel.nets.net_settings import NetSettings
from fedcel.settings import Settings, check_schedule, cut_sigma, find_noise_shape


def defended_net_settings(settings: Settings) -> NetSettings:
    """Choose the split network that a defence needs: narrow, or with noise that is learned.

    Args:
        settings: The run's settings.

    Returns:
        The settings group `net`, its `features` replaced under the defence `bottleneck`, and its
        `noise-shape` by what `auto` stands for where that is learned.
    """
    if settings.defence.name == "bottleneck":
        return settings.net.model_copy(update={"features": int(settings.defence.used_strength)})
    shape = find_noise_shape(settings)
    return (
        settings.net if shape == "one" else settings.net.model_copy(update={"noise_shape": shape})
    )


def build_cut(settings: Settings) -> Cut:
    """Make what happens between encoder and head, in training and in use.

    Args:
        settings: The run's settings.

    Returns:
        The cut, with noise and, under the defence `dropout`, values left out at random.
    """
    sigma = cut_sigma(settings)
    defence = settings.defence
    return Cut(sigma, defence.used_strength) if defence.name == "dropout" else Cut(sigma)


def _build_nopeek(settings: Settings, shape: tuple[int, ...], classes: int) -> Defence:
    return NoPeek()


def _build_adversarial(settings: Settings, shape: tuple[int, ...], classes: int) -> Defence:
    defence = settings.defence
    return Adversarial(shape, settings.net.features, defence.width, defence.rate)


def _build_learned_noise(settings: Settings, shape: tuple[int, ...], classes: int) -> LawDefence:
    return LearnedNoise()


def _build_information_bottleneck(
    settings: Settings, shape: tuple[int, ...], classes: int
) -> LawDefence:
    defence, net, sigma = settings.defence, settings.net, cut_sigma(settings)
    # Before anything is learned, features are taken to be anywhere within their bound.
    centre, variance = (0.5, 1 / 12) if net.bound == "sigmoid" else (0.0, 1.0)
    return InformationBottleneck(
        net.features,
        classes if defence.name == "ceb" else 1,
        sigma,
        centre,
        sqrt(sigma**2 + variance),
        0.0 if defence.marginal == "fixed" else defence.marginal_rate,
    )


DefenceBuilder = Callable[[Settings, tuple[int, ...], int], Defence | LawDefence]
DEFENCE_BUILDERS: dict[str, DefenceBuilder] = {
    "nopeek": _build_nopeek,
    "adversarial": _build_adversarial,
    "learned-noise": _build_learned_noise,
    "vib": _build_information_bottleneck,
    "ceb": _build_information_bottleneck,
}
"""Builder of each defence that is a loss, from settings, the images' shape and the classes."""


def build_defence(
    settings: Settings, shape: tuple[int, ...], classes: int
) -> Defence | LawDefence | None:
    """Make the loss of the defence that the settings name.

    Args:
        settings: The run's settings. `defence.name` `noise+...` is the same loss behind another
            cut; a user's `package.module:object` is called with (settings, shape).
        shape: An image's shape, (C, H, W).
        classes: Number of classes.

    Returns:
        The loss, or None for a defence without one.

    Raises:
        PluginError: The user's object makes neither a loss nor a transform, or a loss that breaks
            its contract.
        SettingsError: A user's loss is on a schedule on which it would never act in full.
    """
    name = settings.defence.name
    if name in ("none", "noise", "bottleneck", "dropout"):
        return None
    if builder := DEFENCE_BUILDERS.get(name.removeprefix("noise+")):
        return builder(settings, shape, classes)
    defence = _load_defence(settings, shape)
    if not isinstance(defence, Defence):
        return None
    check_schedule(settings, "defence.name", name)
    part = plugins.PartName("defence.name", name, "DefenceContract")
    _check_own_defence(part, settings, shape)
    return guard_loss(part, defence)


@lru_cache(maxsize=16)
def _check_own_defence(part: plugins.PartName, settings: Settings, shape: tuple[int, ...]) -> None:
    """Hold a user's loss to its contract."""

    def build() -> Defence:
        defence = _load_defence(settings, shape)
        assert isinstance(defence, Defence)
        return defence

    case = DefenceCase(build, shape, settings.net.features)
    plugins.check_contract(part, LOSS_CHECKS, case)


def _load_defence(settings: Settings, shape: tuple[int, ...]) -> Defence | Transform:
    """Return the user's defence: a loss, a transform of what is sent, or both."""
    name = settings.defence.name
    part = plugins.make_part("defence.name", name, settings, shape)
    if not isinstance(part, Defence | Transform):
        raise PluginError(
            f"defence.name {name!r} made {part!r}, which lacks refresh, loss or step, or transform"
        )
    return part


def apply_transform(settings: Settings, shape: tuple[int, ...], net: SplitNet) -> SplitNet:
    """Let the encoder of a net end as a user's defence wants it.

    Args:
        settings: The run's settings.
        shape: An image's shape, (C, H, W).
        net: The net that the settings name.

    Returns:
        The net with the transform, or `net` itself without one.

    Raises:
        PluginError: The user's object is no defence, or its transform changes features in a way
            that nobody could train behind; see `append_transform`.
    """
    name = settings.defence.name
    defence = _load_defence(settings, shape) if ":" in name else None
    return append_transform(defence, net, shape, name) if isinstance(defence, Transform) else net
