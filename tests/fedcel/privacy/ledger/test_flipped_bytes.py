"""A disk that returns another byte than was written: nothing is charged or told from it."""

from pathlib import Path

from tests.fedcel.privacy.ledger.flipped_bytes import flip_bytes


def test_a_changed_byte_is_harmless_or_refused(tmp_path: Path) -> None:
    """Of 600: each use gives what the sound ledger gives, or a LedgerError; both ends occur."""
    ends = flip_bytes(tmp_path, 600, seed=0)
    assert ends["verify: sound; refused: nothing"] > 50
    assert sum(times for end, times in ends.items() if "verify: sound" not in end) > 50
