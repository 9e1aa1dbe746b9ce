"""The record of what left a device, and what messages of one group are charged."""

from dataclasses import replace
from pathlib import Path

import pytest

from clients.device import SentMessages
from fedcel.errors import DataError, LeakLimitError, RunError
from tests.clients.device.test_device import IMAGES, device


def test_a_damaged_count_is_refused(tmp_path: Path) -> None:
    """What was sent is not known any more."""
    path = tmp_path / "sent.txt"
    path.write_text("abc\n")
    with pytest.raises(RunError, match="new state folder"):
        SentMessages(path)


@pytest.mark.parametrize("text", [None, ""])
def test_a_count_that_is_lost_while_it_is_in_use_stops_sending(
    tmp_path: Path, text: str | None
) -> None:
    """Removed or cut off: new messages would not be counted against the limit."""
    path = tmp_path / "sent.txt"
    phone = device(sent=SentMessages(path))
    phone.build_message(IMAGES[0])
    path.unlink() if text is None else path.write_text(text)
    for image in IMAGES[1:3]:
        with pytest.raises(RunError, match="is shorter than before.*put it back"):
            phone.build_message(image)
    assert not path.read_text()


@pytest.mark.parametrize("kept", [1, 31, 32, 33, 35, 49, 50, 60, 82])
def test_a_line_that_was_cut_off_counts_as_sent(tmp_path: Path, kept: int) -> None:
    """Of the most bits, once, and of every group, wherever the power went."""
    path = tmp_path / "sent.txt"
    lines = f"{'ab' * 16} 0.75\n", f"{'cd' * 16} 0.12345678901234 {'ef' * 16}\n"
    path.write_text(lines[0] + lines[1][:kept])
    for _ in range(2):
        phone = replace(device(sent=SentMessages(path)), group_limit=1.25)
        phone.build_message(IMAGES[0], "ann")
        assert phone.leaked_bits == 0.75 + 0.75 + 0.5
        assert len(phone.sent) == 3
        with pytest.raises(LeakLimitError, match="number 3 of nearly the same.*1.8 of it in all"):
            phone.build_message(IMAGES[1], "ann")
    assert replace(device(sent=SentMessages(path)), limit=2.5).build_message(IMAGES[1], "bob")


@pytest.mark.parametrize("remainder", [b"\0\0ab torn 0.", b"ab\r\x0bcd 0."])
def test_a_cut_that_is_cut_again_loses_nothing(tmp_path: Path, remainder: bytes) -> None:
    """The power goes while the line of before is completed; the first message's bits count."""
    path = tmp_path / "sent.txt"
    path.write_bytes(remainder)
    for _ in range(2):
        phone = device(sent=SentMessages(path))
        phone.build_message(IMAGES[0])
        assert (len(phone.sent), phone.leaked_bits) == (2, 1.0)


def test_a_group_that_the_caller_names_adds_up() -> None:
    """Pictures of one person; another name is another group, and a repeat costs nothing."""
    phone = replace(device(), group_limit=1.0)
    for image in IMAGES[:2]:
        phone.build_message(image, "ann")
    with pytest.raises(LeakLimitError, match=r"number 3 of nearly the same.*1.5 of it in all"):
        phone.build_message(IMAGES[2], "ann")
    phone.build_message(IMAGES[2], "bob")
    assert phone.leaked_bits == 1.5
    for name in ("ann", "bob"):
        phone.build_message(IMAGES[0], name)
    assert phone.leaked_bits == 1.5


def test_an_image_without_a_group_is_alone_or_refused() -> None:
    """Where groups have a limit, nothing leaves that would be charged to none."""
    phone = device()
    for image in IMAGES[:2]:
        phone.build_message(image)
    assert phone.leaked_bits == 1.0
    limited = replace(device(), group_limit=1.0)
    with pytest.raises(DataError, match="name the scene or person"):
        limited.build_message(IMAGES[0])
    assert limited.leaked_bits == 0.0


def test_a_group_survives_a_restart_and_is_shared(tmp_path: Path) -> None:
    """By its name, which the file does not hold; lines of before there were groups are read."""
    path = tmp_path / "sent.txt"
    path.write_text(f"{'ab' * 16} 0.25\n")
    phone, tablet = (replace(device(sent=SentMessages(path)), group_limit=1.0) for _ in range(2))
    phone.build_message(IMAGES[0], "ann")
    tablet.build_message(IMAGES[1], "ann")
    again = replace(device(sent=SentMessages(path)), group_limit=1.0)
    for late in (phone, again):
        with pytest.raises(LeakLimitError, match="number 3 of nearly the same"):
            late.build_message(IMAGES[2], "ann")
    assert "ann" not in path.read_text() and again.leaked_bits == 1.25
