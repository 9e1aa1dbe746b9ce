"""Rival defences of smashed data: what they make of the net, the cut and the loss."""

from fedcel.cut import Cut
from fedcel.defences.base import Defence
from fedcel.errors import SettingsError
from fedcel.settings import Settings
from fedcel.settings_groups import Net

__all__ = ["Defence", "build", "cut", "net"]


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


def build(settings: Settings, shape: tuple[int, ...]) -> Defence | None:
    """Return the loss of the defence for images of `shape` (C, H, W), or None if it has none."""
    if settings.defence.name in ("none", "noise", "bottleneck", "dropout"):
        return None
    raise SettingsError(f"defence.name {settings.defence.name!r} is not built yet")
