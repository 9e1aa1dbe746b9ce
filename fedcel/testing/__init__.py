"""Contract suites: inherit one, build your own part in it, and pytest runs the rest."""

from fedcel.testing.cel import CELContract

__all__ = ["CELContract"]
