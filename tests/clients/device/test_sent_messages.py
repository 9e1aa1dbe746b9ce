"""The record of what left a device."""

from pathlib import Path

import pytest

from clients.device import SentMessages
from fedcel.errors import RunError


def test_a_damaged_count_is_refused(tmp_path: Path) -> None:
    """What was sent is not known any more."""
    path = tmp_path / "sent.txt"
    path.write_text("abc\n")
    with pytest.raises(RunError, match="new state folder"):
        SentMessages(path)
