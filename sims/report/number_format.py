"""Numbers as text."""

from sims.results import Estimate

DASH = "–"


def format_number(value: float | None, digits: int) -> str:
    """Return a number with so many decimals, None as a dash."""
    return DASH if value is None else f"{value:z.{digits}f}"


def format_share(value: float | None) -> str:
    """Return a share as percent with one decimal, without the sign."""
    return format_number(None if value is None else 100 * value, 1)


def format_interval(value: Estimate, digits: int, scale: float = 1) -> str:
    """Return "mean ± half" of the 95 % interval, or the mean where there is none."""
    return _format_spread(value.mean, value.half, digits, scale)


def format_deviation(value: Estimate, digits: int) -> str:
    """Return "mean ± standard deviation", or the mean of a single value."""
    return _format_spread(value.mean, value.sd, digits, 1)


def _format_spread(mean: float | None, spread: float | None, digits: int, scale: float) -> str:
    text = format_number(None if mean is None else scale * mean, digits)
    return text if spread is None else f"{text} ± {format_number(scale * spread, digits)}"
