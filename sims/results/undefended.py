"""Undefended runs, with which others are compared."""

from fedcel.settings import Settings


def is_defended(settings: Settings) -> bool:
    """Whether there is a conditional entropy loss or a rival defence."""
    return settings.cel.kind != "none" or settings.defence.name != "none"


def is_undefended(strength: float | None, settings: Settings) -> bool:
    """Whether a cell can be the baseline of others: no defence and no swept strength."""
    return strength is None and not is_defended(settings)
