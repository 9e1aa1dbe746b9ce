"""The defence that settings name: its loss, its cut, its net."""

from collections.abc import Callable
from functools import lru_cache

from fedcel import plugins
from fedcel.errors import PluginError
from fedcel.losses.defences.adversarial import Adversarial
from fedcel.losses.defences.contract import DEFENCE_CHECKS, DefenceCase
from fedcel.losses.defences.nopeek import NoPeek
from fedcel.losses.defences.own_defence import OwnDefence
from fedcel.losses.defences.protocol import Defence, Transform
from fedcel.losses.defences.transform import append_transform
from fedcel.nets import Cut, SplitNet
from fedcel.settings import NetSettings, Settings, check_schedule, cut_sigma


def defended_net_settings(settings: Settings) -> NetSettings:
    """Choose the split network that a defence needs: a bottleneck makes it narrow.

    Args:
        settings: The run's settings.

    Returns:
        The settings group `net`, its `features` replaced under the defence `bottleneck`.
    """
    if settings.defence.name != "bottleneck":
        return settings.net
    return settings.net.model_copy(update={"features": int(settings.defence.used_strength)})


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


def _build_nopeek(settings: Settings, shape: tuple[int, ...]) -> Defence:
    return NoPeek()


def _build_adversarial(settings: Settings, shape: tuple[int, ...]) -> Defence:
    defence = settings.defence
    return Adversarial(shape, settings.net.features, defence.width, defence.rate)


DEFENCE_BUILDERS: dict[str, Callable[[Settings, tuple[int, ...]], Defence]] = {
    "nopeek": _build_nopeek,
    "adversarial": _build_adversarial,
}
"""Builder of each defence that is a loss, from settings and the images' shape."""


def build_defence(settings: Settings, shape: tuple[int, ...]) -> Defence | None:
    """Make the loss of the defence that the settings name.

    Args:
        settings: The run's settings. `defence.name` `noise+...` is the same loss behind another
            cut; a user's `package.module:object` is called with (settings, shape).
        shape: An image's shape, (C, H, W).

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
        return builder(settings, shape)
    defence = _load_defence(settings, shape)
    if not isinstance(defence, Defence):
        return None
    check_schedule(settings, "defence.name", name)
    part = plugins.PartName("defence.name", name, "DefenceContract")
    _check_own_defence(part, settings, shape)
    return OwnDefence(part, defence)


@lru_cache(maxsize=16)
def _check_own_defence(part: plugins.PartName, settings: Settings, shape: tuple[int, ...]) -> None:
    """Hold a user's loss to its contract."""

    def build() -> Defence:
        defence = _load_defence(settings, shape)
        assert isinstance(defence, Defence)
        return defence

    case = DefenceCase(build, shape, settings.net.features)
    plugins.check_contract(part, DEFENCE_CHECKS, case)


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
