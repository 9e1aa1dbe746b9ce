"""The defence that settings name: its loss, its cut, its net."""

from collections.abc import Callable

from fedcel import plugins
from fedcel.errors import PluginError
from fedcel.losses.defences.adversarial import Adversarial
from fedcel.losses.defences.nopeek import NoPeek
from fedcel.losses.defences.protocol import Defence, Transform
from fedcel.losses.defences.transform import append_transform
from fedcel.nets import Cut, SplitNet
from fedcel.settings import NetSettings, Settings, check_schedule, cut_sigma


def defended_net_settings(settings: Settings) -> NetSettings:
    """Return the split network's settings, as narrow as a bottleneck makes it."""
    if settings.defence.name != "bottleneck":
        return settings.net
    return settings.net.model_copy(update={"features": int(settings.defence.used_strength)})


def build_cut(settings: Settings) -> Cut:
    """Return what happens between encoder and head, in training and in use."""
    sigma, defence = cut_sigma(settings), settings.defence
    return Cut(sigma, defence.used_strength) if defence.name == "dropout" else Cut(sigma)


def _nopeek(settings: Settings, shape: tuple[int, ...]) -> Defence:
    return NoPeek()


def _adversarial(settings: Settings, shape: tuple[int, ...]) -> Defence:
    defence = settings.defence
    return Adversarial(shape, settings.net.features, defence.width, defence.rate)


KINDS: dict[str, Callable[[Settings, tuple[int, ...]], Defence]] = {
    "nopeek": _nopeek,
    "adversarial": _adversarial,
}
"""Constructors of the losses, from settings and the images' shape."""


def build_defence(settings: Settings, shape: tuple[int, ...]) -> Defence | None:
    """Return the loss of the defence for images of `shape` (C, H, W), or None if it has none.

    `noise+...` is the same loss behind another cut. PluginError as `load_own_defence`;
    SettingsError for an own loss on a schedule on which it would never act in full.
    """
    name = settings.defence.name
    if name in ("none", "noise", "bottleneck", "dropout"):
        return None
    known = KINDS.get(name.removeprefix("noise+"))
    if known:
        return known(settings, shape)
    made = load_own_defence(settings, shape)
    if not isinstance(made, Defence):
        return None
    check_schedule(settings, "defence.name", name)
    return made


def load_own_defence(settings: Settings, shape: tuple[int, ...]) -> Defence | Transform:
    """Return the user's defence: a loss, a transform of what is sent, or both.

    `package.module:object` takes (settings, shape); PluginError where it makes neither.
    """
    name = settings.defence.name
    made = plugins.make_part("defence.name", name, settings, shape)
    if not isinstance(made, Defence | Transform):
        raise PluginError(
            f"defence.name {name!r} made {made!r}, which lacks refresh, loss or step, or transform"
        )
    return made


def apply_transform(settings: Settings, shape: tuple[int, ...], net: SplitNet) -> SplitNet:
    """Return the net whose encoder ends as a user's defence wants it; as it is without one.

    PluginError as `load_own_defence` and `append_transform`.
    """
    name = settings.defence.name
    made = load_own_defence(settings, shape) if ":" in name else None
    return append_transform(made, net, shape, name) if isinstance(made, Transform) else net
