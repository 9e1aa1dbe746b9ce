"""Identity for the messages that tests make."""

from collections.abc import Iterator

import pytest

from fedcel.testing.message_identity import allow_messages


@pytest.fixture(autouse=True)
def task() -> Iterator[None]:
    """Give the messages of a test an identity."""
    with allow_messages():
        yield
