"""The device: the same image is the same message, counted before it leaves."""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from clients.device import Device, SentMessages, load_device_key
from clients.encoder_leak_guard import Leak
from clients.service_messages import EncoderCard, ModelCard
from fedcel.errors import DataError, LeakLimitError
from fedcel.nets.cut import Cut
from fedcel.nets.split_net import SplitNet

IMAGES = torch.rand(9, 1, 4, 4, generator=torch.Generator().manual_seed(0))
NET = SplitNet(nn.Flatten(), nn.Identity(), Cut(0.3), 16)
LEAK = Leak(0.4, 0.1, 5.0, 64)


def make_card(sha256: str = "v") -> ModelCard:
    encoder = EncoderCard(url="", sha256=sha256, bytes=0)
    return ModelCard.model_construct(shape=[1, 4, 4], largest=1e6, encoder=encoder)


def device(
    limit: float = 100.0, key: bytes = bytes(32), sent: SentMessages | None = None
) -> Device:
    """Return a device of which one message tells up to half a bit."""
    return Device(
        card=make_card(),
        net=NET,
        leak=LEAK,
        limit=limit,
        key=key,
        sent=SentMessages() if sent is None else sent,
    )


def test_the_same_image_is_the_same_message_for_one_key() -> None:
    """So that asking again tells nothing new, and repeats count once."""
    phone, tablet = device(), device(key=b"1" * 32)
    assert phone.build_message(IMAGES[0]) == phone.build_message(IMAGES[0].double().float())
    assert phone.leaked_bits == 0.5
    messages = [phone.build_message(IMAGES[0]), phone.build_message(IMAGES[1])]
    assert len({*messages, tablet.build_message(IMAGES[0])}) == 3
    assert len(messages[0]) == 64
    assert phone.leaked_bits == 1.0


def test_what_is_printed_shows_no_key() -> None:
    """Whoever has it and a message can take the noise off."""
    secret = bytes(range(100, 132))
    assert repr(secret)[2:-1] not in repr(device(key=secret)) and "key=" not in repr(device())


def test_nothing_leaves_beyond_the_limit() -> None:
    """Two messages of half a bit for one bit; a repeat is no new phone."""
    phone = device(limit=1.0)
    first = phone.build_message(IMAGES[0])
    phone.build_message(IMAGES[1])
    with pytest.raises(LeakLimitError, match=r"number 3, of up to 0.500 bits, 1.5 in all"):
        phone.build_message(IMAGES[2])
    assert phone.build_message(IMAGES[0]) == first
    assert len(phone.sent) == 2


def test_key_and_count_survive_a_restart(tmp_path: Path) -> None:
    """The key is the owner's alone; the count holds no image."""
    path = tmp_path / "state" / "device.key"
    key = load_device_key(path)
    assert path.stat().st_mode & 0o777 == 0o600 and len(key) == 32
    sent = path.with_name("sent.txt")
    first = device(key=key, sent=SentMessages(sent)).build_message(IMAGES[0])
    again = device(key=load_device_key(path), sent=SentMessages(sent))
    assert len(again.sent) == 1
    assert again.build_message(IMAGES[0]) == first
    assert len(again.sent) == 1 == len(sent.read_text().splitlines())
    assert load_device_key(None) != load_device_key(None)


def test_two_processes_that_start_at_once_have_one_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that comes second takes the key of the first, which is whole or not there."""
    path, link = tmp_path / "device.key", os.link

    def come_second(source: str, target: Path) -> None:
        other = tmp_path / "other.key"
        other.write_bytes(b"1" * 32)
        other.chmod(0o600)
        link(other, target)
        other.unlink()
        link(source, target)

    monkeypatch.setattr(os, "link", come_second)
    assert load_device_key(path) == b"1" * 32
    assert [file.name for file in tmp_path.iterdir()] == ["device.key"]


def test_each_message_counts_with_the_bits_of_its_own_model(tmp_path: Path) -> None:
    """A later model that leaks less does not make the earlier messages cheaper."""
    sent = SentMessages(tmp_path / "sent.txt")
    device(limit=1.0, sent=sent).build_message(IMAGES[0])
    small = replace(
        device(limit=1.0, sent=SentMessages(tmp_path / "sent.txt")), card=make_card("w")
    )
    small = replace(small, leak=Leak(0.2, 0.1, 5.0, 64))
    small.build_message(IMAGES[0])
    assert small.leaked_bits == pytest.approx(0.8)
    with pytest.raises(LeakLimitError, match="number 3, of up to 0.300 bits, 1.1 in all"):
        small.build_message(IMAGES[1])


def test_two_processes_on_one_file_share_the_limit(tmp_path: Path) -> None:
    """What one has sent the other knows before it sends."""
    path = tmp_path / "sent.txt"
    phone, tablet = (device(limit=1.0, sent=SentMessages(path)) for _ in range(2))
    phone.build_message(IMAGES[0])
    tablet.build_message(IMAGES[1])
    for late in (phone, tablet):
        with pytest.raises(LeakLimitError, match="number 3"):
            late.build_message(IMAGES[2])
    assert phone.build_message(IMAGES[1]) == tablet.build_message(IMAGES[1])
    assert phone.leaked_bits == tablet.leaked_bits == 1.0


def test_a_message_that_cannot_be_counted_is_not_sent_later_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk: nothing leaves, and the next try counts it."""
    phone = device(limit=1.0, sent=SentMessages(tmp_path / "sent.txt"))

    def full(_: int) -> None:
        raise OSError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        with pytest.raises(OSError, match="no space"):
            phone.build_message(IMAGES[0])
        assert phone.leaked_bits == 0
    phone.build_message(IMAGES[0])
    assert phone.leaked_bits == SentMessages(tmp_path / "sent.txt").total_bits == 0.5


def test_another_encoder_or_cut_draws_other_noise() -> None:
    """Else two messages of one image would tell their common noise, and with it z."""
    phone = device()
    rebuilt = replace(phone, card=make_card("w"), net=SplitNet(NET.encoder, NET.head, Cut(0.6), 16))
    first, second = (np.frombuffer(d.build_message(IMAGES[0]), "<f4") for d in (phone, rebuilt))
    guess = 2 * first - second  # z, where xi is the same
    assert np.abs(guess - IMAGES[0].flatten().numpy()).max() > 0.1


@pytest.mark.parametrize(
    "image",
    [IMAGES[0, 0], IMAGES[0] + 1, IMAGES[0] * torch.nan, torch.rand(1, 4, 5)],
    ids=["no channel", "above 1", "NaN", "shape"],
)
def test_what_is_no_image_is_refused(image: torch.Tensor) -> None:
    """And counts nothing."""
    phone = device()
    with pytest.raises(DataError, match="must be"):
        phone.build_message(image)
    assert phone.leaked_bits == 0


def test_a_message_that_no_service_takes_is_not_sent() -> None:
    """An unbounded encoder's values."""

    class Huge(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.flatten(1) + 2e6

    net = SplitNet(Huge(), nn.Identity(), Cut(0.3), 16)
    phone = replace(device(limit=9.0), net=net)
    with pytest.raises(DataError, match="bounded encoder"):
        phone.build_message(IMAGES[0])
    assert phone.leaked_bits == 0
