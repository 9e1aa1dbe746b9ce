"""Objects that start over in a forked process, as another thread may have held their locks."""

import os
from typing import Protocol, runtime_checkable
from weakref import WeakSet


@runtime_checkable
class Restartable(Protocol):
    """Holds a lock, or what no two processes may use."""

    def restart(self) -> None:
        """Start over, as if nothing had happened yet."""


_KEPT: WeakSet[Restartable] = WeakSet()


def restart_in_forks(owner: Restartable) -> None:
    """Have an object start over in each process that is forked from this one."""
    _KEPT.add(owner)


def _restart_all() -> None:
    for owner in _KEPT:
        owner.restart()


os.register_at_fork(after_in_child=_restart_all)
