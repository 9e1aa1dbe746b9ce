"""Objects that start over in a forked process, as another thread may have held their locks."""

import os
from typing import Any
from weakref import WeakSet

_KEPT: WeakSet[Any] = WeakSet()


def restart_in_forks(owner: Any) -> None:
    """Have an object's method `restart` called in each process that is forked from this one."""
    _KEPT.add(owner)


def _restart_all() -> None:
    for owner in _KEPT:
        owner.restart()


os.register_at_fork(after_in_child=_restart_all)
