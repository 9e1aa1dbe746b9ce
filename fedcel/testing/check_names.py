"""Names that pytest shows for checks that a suite shares with the runs."""

from collections.abc import Callable


def name_check(check: Callable[..., None]) -> str:
    """Return a check's name in words: `_check_small_batches` is `small-batches`."""
    return check.__name__.removeprefix("_check_").replace("_", "-")
