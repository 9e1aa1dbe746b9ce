"""A ledger that is sound at the end of every test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from fedcel.privacy.ledger import MICRO, Ledger


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    """Yield a new ledger in which ann has 3 epsilon, sound at the end."""
    with Ledger.open(tmp_path / "ledger.db") as opened:
        opened.grant("ann", 3 * MICRO)
        yield opened
        assert opened.verify() == []
