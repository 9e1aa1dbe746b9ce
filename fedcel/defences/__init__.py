"""Rival defences of smashed data: what they make of the net, the cut and the loss."""

from collections.abc import Callable

from fedcel import plugins
from fedcel.cut import Cut
from fedcel.defences.adversarial import Adversarial
from fedcel.defences.base import Defence
from fedcel.defences.nopeek import NoPeek
from fedcel.errors import PluginError
from fedcel.settings import Settings
from fedcel.settings_groups import Net

__all__ = ["KINDS", "Adversarial", "Defence", "NoPeek", "build", "cut", "net"]


def net(settings: Settings) -> Net:
    """Return the split network's settings, as narrow as a bottleneck makes it."""
    if settings.defence.name != "bottleneck":
        return settings.net
    return settings.net.model_copy(update={"features": int(settings.defence.strength)})


def cut(settings: Settings) -> Cut:
    """Return what happens between encoder and head, in training and in use."""
    defence = settings.defence
    if defence.name == "noise":
        return Cut(defence.strength)
    if defence.name == "dropout":
        return Cut(settings.net.noise, defence.strength)
    if defence.name.startswith("noise+"):
        return Cut(defence.noise)
    return Cut(settings.net.noise)


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


def build(settings: Settings, shape: tuple[int, ...]) -> Defence | None:
    """Return the loss of the defence for images of `shape` (C, H, W), or None if it has none.

    `noise+...` is the same loss behind another cut. A user's `package.module:object` takes
    (settings, shape); PluginError where it does not make a defence.
    """
    name = settings.defence.name
    if name in ("none", "noise", "bottleneck", "dropout"):
        return None
    make = KINDS.get(name.removeprefix("noise+")) or plugins.load(name)
    if not callable(make):
        raise PluginError(f"defence.name {name!r} cannot be called; name a class or a function")
    made = make(settings, shape)
    if not isinstance(made, Defence):
        raise PluginError(f"defence.name {name!r} made {made!r}, which lacks refresh, loss or step")
    return made
