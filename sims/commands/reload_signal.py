"""SIGHUP asks a service to read its run again, at whatever moment it comes."""

import signal
from collections.abc import Callable


class ReloadSignal:
    """Takes SIGHUP, and keeps it for a service that is not made yet."""

    def __init__(self) -> None:
        self._reload: Callable[[], None] | None = None
        self._is_pending = False

    def catch(self) -> None:
        """Take the signal from now on; a process that does not is ended by it."""
        if hasattr(signal, "SIGHUP"):  # Windows has none
            signal.signal(signal.SIGHUP, lambda *_: self.request())

    def request(self) -> None:
        """Have the run read again, now or as soon as there is a service."""
        if self._reload is None:
            self._is_pending = True
        else:
            self._reload()

    def connect(self, reload: Callable[[], None]) -> None:
        """Say what reads the run again; it is called at once where a signal came before."""
        self._reload = reload
        if self._is_pending:
            self._is_pending = False
            reload()
