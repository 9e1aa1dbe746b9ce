"""Identity for the messages that tests make; runs without the bound that takes longest."""

from collections.abc import Iterator

import pytest

from fedcel.flower_messages import allow_messages
from tests.spared import spare_bound


@pytest.fixture(autouse=True)
def task() -> Iterator[None]:
    """Give the messages of a test an identity."""
    with allow_messages():
        yield


@pytest.fixture(autouse=True)
def spare_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spare the bound of images that nobody has seen."""
    spare_bound(monkeypatch)
