"""Progress of a long work, told to whoever listens."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

ProgressListener = Callable[[int, int], None]
"""Takes how many parts of the work under way are done, and how many there are."""

_LISTENER: ContextVar[ProgressListener | None] = ContextVar("progress_listener", default=None)


@contextmanager
def listen_to_progress(listener: ProgressListener) -> Iterator[None]:
    """Have the work inside tell a listener after each part how much of it is done.

    If the listener tells of progress itself, the listener outside hears it.
    """
    outside = _LISTENER.get()

    def tell_outside(finished: int, total: int) -> None:
        token = _LISTENER.set(outside)
        try:
            listener(finished, total)
        finally:
            _LISTENER.reset(token)

    token = _LISTENER.set(tell_outside)
    try:
        yield
    finally:
        _LISTENER.reset(token)


def tell_progress(finished: int, total: int) -> None:
    """Tell the listener, if there is one, how many parts are done of how many."""
    listener = _LISTENER.get()
    if listener is not None:
        listener(finished, total)
