"""Messages of nearly the same image: whose group they are, what it pays, what is refused."""

from dataclasses import replace
from math import inf
from pathlib import Path

import pytest
import torch
from torch import nn

from clients.device import MessageGroups, SentMessages
from clients.device.message_groups import EarlierMessage
from fedcel.errors import LeakLimitError, NearDuplicateError
from fedcel.nets import Cut, SplitNet
from tests.clients.device.test_device import IMAGES, device

SIGMA = 0.3  # of the device's net


def near(image: torch.Tensor, sigmas: float) -> torch.Tensor:
    """Return an image so many standard deviations of the noise away in feature space."""
    step = sigmas * SIGMA / image.numel() ** 0.5
    return image + torch.where(image < 0.5, step, -step)


def test_frames_of_a_scene_add_up() -> None:
    """By distance and by hand: frames half a sigma apart are one group, half a bit each."""
    phone = device()
    first = phone.prepare(IMAGES[0]).charge
    assert (first.basis, first.messages, first.bits, first.distance) == ("alone", 1, 0.5, None)
    frame = phone.prepare(near(IMAGES[0], 0.5)).charge
    assert (frame.basis, frame.messages, frame.bits) == ("nearest", 2, 1.0)
    assert frame.distance == pytest.approx(0.5, abs=1e-3)
    assert str(frame).endswith("it is 0.50 sigma from an earlier message")
    other = phone.prepare(IMAGES[1]).charge
    assert (other.basis, other.messages, other.bits) == ("alone", 1, 0.5)
    assert phone.prepare(IMAGES[0]).charge._replace(distance=None) == ("repeat", 2, 1.0, None)
    assert phone.leaked_bits == 1.5


@pytest.mark.parametrize(("sigmas", "basis"), [(0.98, "nearest"), (1.02, "alone")])
def test_the_radius_is_in_units_of_the_noise(sigmas: float, basis: str) -> None:
    """One sigma: on either side of it."""
    phone = device()
    phone.prepare(IMAGES[0])
    assert phone.prepare(near(IMAGES[0], sigmas)).charge.basis == basis


def test_a_group_that_the_caller_names_holds_whatever_is_in_it() -> None:
    """Pictures far apart, of one person; another name is another group."""
    phone = replace(device(), group_limit=1.0)
    charges = [phone.prepare(image, "ann").charge for image in IMAGES[:2]]
    assert [(c.basis, c.messages, c.bits) for c in charges] == [
        ("caller", 1, 0.5),
        ("caller", 2, 1),
    ]
    with pytest.raises(LeakLimitError, match=r"number 3 of nearly the same.*1.5 of it in all"):
        phone.prepare(IMAGES[2], "ann")
    assert phone.prepare(IMAGES[2], "bob").charge.bits == 0.5
    assert phone.leaked_bits == 1.5
    assert phone.prepare(IMAGES[0], "ann").charge.basis == "repeat"


def test_a_group_survives_a_restart_and_is_shared(tmp_path: Path) -> None:
    """By its name, which the file does not hold; lines of before there were groups are read."""
    path = tmp_path / "sent.txt"
    path.write_text(f"{'ab' * 16} 0.25\n")
    phone, tablet = (replace(device(sent=SentMessages(path)), group_limit=1.0) for _ in range(2))
    phone.prepare(IMAGES[0], "ann")
    tablet.prepare(IMAGES[1], "ann")
    again = replace(device(sent=SentMessages(path)), group_limit=1.0)
    for late in (phone, again):
        with pytest.raises(LeakLimitError, match="number 3 of nearly the same"):
            late.prepare(IMAGES[2], "ann")
    assert "ann" not in path.read_text() and again.leaked_bits == 1.25


def test_near_duplicates_can_be_refused() -> None:
    """Nothing is charged; the image itself may be asked about again."""
    phone = replace(device(), near_duplicates="refuse")
    phone.prepare(IMAGES[0])
    with pytest.raises(NearDuplicateError, match="nearly an earlier one"):
        phone.prepare(near(IMAGES[0], 0.5))
    phone.prepare(IMAGES[1], "ann")
    with pytest.raises(NearDuplicateError):
        phone.prepare(IMAGES[2], "ann")
    assert phone.leaked_bits == 1.0 and phone.prepare(IMAGES[0]).charge.basis == "repeat"


def test_the_earlier_message_can_be_sent_again() -> None:
    """The very bytes, so the service answers for free and nothing new is told."""
    phone = replace(device(), near_duplicates="reuse")
    first = phone.prepare(IMAGES[0])
    frames = [phone.prepare(near(IMAGES[0], sigmas)) for sigmas in (0.3, 0.6, 0.9)]
    assert {frame.content for frame in frames} == {first.content}
    assert phone.leaked_bits == 0.5 and len(phone.sent) == 1
    assert frames[-1].charge.messages == 1
    assert phone.prepare(IMAGES[1]).content != first.content


def test_without_noise_or_radius_only_the_caller_decides() -> None:
    """Distances in units of nothing say nothing."""
    for phone in (
        replace(device(), groups=MessageGroups(0.0)),
        replace(device(), net=SplitNet(nn.Flatten(), nn.Identity(), Cut(0.0), 16)),
    ):
        phone.prepare(IMAGES[0])
        assert phone.prepare(near(IMAGES[0], 0.5)).charge.basis == "alone"
        assert phone.prepare(IMAGES[2], "ann").charge.basis == "caller"
    assert device().group_limit == inf


def test_the_nearest_of_many_is_found() -> None:
    """Beyond the room for the first ones, each of them."""
    groups = MessageGroups(1.0)
    points = torch.randn(70, 3, generator=torch.Generator().manual_seed(0))
    for number, point in enumerate(points):
        groups.remember(EarlierMessage(point, bytes([number % 7]), bytes([number])))
    for number in (0, 15, 16, 69):
        nearest = groups.find_nearest(points[number] + 1e-4)
        assert nearest and nearest[0].content == bytes([number])
        assert nearest[1] == pytest.approx(3**0.5 * 1e-4, rel=0.01)
    first = groups.find_group(bytes([3]))
    assert first and first.content == bytes([3]) and groups.find_group(b"x") is None


def test_features_stay_out_of_logs() -> None:
    """They say more of an image than its message does."""
    phone = device()
    phone.prepare(IMAGES[0])
    assert "tensor" not in repr(phone.groups)
