"""Identity for the messages that tests make; runs without the bound that takes longest."""

from tests.strategies.conftest import spare_work, task

__all__ = ["spare_work", "task"]
