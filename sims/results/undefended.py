"""Which runs others are compared with."""

from fedcel.settings import Settings


def is_defended(settings: Settings) -> bool:
    """Say whether there is a conditional entropy loss or a rival defence."""
    return settings.cel.kind != "none" or settings.defence.name != "none"


def is_undefended(strength: float | None, settings: Settings) -> bool:
    """Say whether a cell can be what others are compared with: it defends and sweeps nothing."""
    return strength is None and not is_defended(settings)
