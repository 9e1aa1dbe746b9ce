"""What stays on the device: the measured encoder, its secret key, the count of what was sent."""

import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import IO, final

import torch
from jaxtyping import Float
from torch import Tensor

from clients.device.keyed_noise import KEY_BYTES, compute_fingerprint, disturb_features
from clients.leak_guard import Leak
from clients.wire import ModelCard
from fedcel.errors import DataError, LeakLimitError, RunError
from fedcel.files import lock_file
from fedcel.nets import SplitNet

MARK_BYTES = 16
"""Of a message's fingerprint, which are kept."""


class SentMessages:
    """Which messages ever left, and what each may tell; in a file where one is given.

    A restart and other processes on the same file forget nothing. It holds fingerprints under the
    device's key: who reads it learns no image.

    Args:
        path: The file, made where there is none; None: remembered as long as the process lives.

    Raises:
        RunError: The file is damaged.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._lock = Lock()
        self._marks: set[str] = set()
        self._offset = 0
        self.total_bits = 0.0
        """Bits that all messages together may tell, at most."""
        if path:
            with lock_file(path) as file:
                self._read_new_lines(file)

    def __len__(self) -> int:
        """Return the number of distinct messages."""
        return len(self._marks)

    def add(self, fingerprint: bytes, bits: float, limit: float) -> None:
        """Count a message before it leaves, once.

        Args:
            fingerprint: Of the message; a repeat has the same.
            bits: What it may tell, at most.
            limit: Of all messages together, in bits.

        Raises:
            LeakLimitError: All messages together may tell more than the limit with it.
        """
        mark = fingerprint[:MARK_BYTES].hex()
        with self._lock:
            if self._path is None:
                if self._is_new(mark, bits, limit):
                    self._remember(mark, bits)
                return
            with lock_file(self._path) as file:
                self._read_new_lines(file)
                if self._is_new(mark, bits, limit):
                    file.write(f"{mark} {bits!r}\n".encode())
                    file.flush()
                    os.fsync(file.fileno())
                    self._read_new_lines(file)  # counted once it is on the disk, never before

    def _is_new(self, mark: str, bits: float, limit: float) -> bool:
        """Say whether the message is new; LeakLimitError when it is, and one too many."""
        if mark in self._marks:
            return False
        if self.total_bits + bits > limit:
            raise LeakLimitError(
                f"this message would be number {len(self) + 1}, of up to {bits:.3f} bits, "
                f"{self.total_bits + bits:.1f} in all, the limit is {limit:g}; nothing was sent"
            )
        return True

    def _remember(self, mark: str, bits: float) -> None:
        self._marks.add(mark)
        self.total_bits += bits

    def _read_new_lines(self, file: IO[bytes]) -> None:
        """Read what was written since the last time, by whomever."""
        file.seek(self._offset)
        for line in file.read().splitlines():
            try:
                mark, bits = line.decode().split()
                self._remember(mark, float(bits))
            except ValueError:
                raise RunError(
                    f"{self._path} has a line {line[:80]!r}, must be a mark and its bits; what was "
                    "sent is not known any more: begin with a new state folder"
                ) from None
        self._offset = file.tell()


def describe_law(card: ModelCard, net: SplitNet) -> str:
    """Describe what decides a message besides the image.

    Args:
        card: Of the served model; of it only the encoder's digest, which was checked.
        net: The received net, with its cut.

    Returns:
        A text that differs where the encoder or the cut does.
    """
    return f"{card.encoder.sha256} {net.cut!r}"


def load_device_key(path: Path | None) -> bytes:
    """Read the secret key of a device.

    Args:
        path: Its file, made at first use; None: a new key, for this process.

    Returns:
        The key, 32 bytes.

    Raises:
        RunError: The file holds no key, or others may read it.
    """
    if path is None:
        return secrets.token_bytes(KEY_BYTES)
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        mode, key = path.stat().st_mode & 0o777, path.read_bytes()
        if mode & 0o077:
            raise RunError(f"{path} is open to others (mode {mode:o}); chmod it to 600") from None
        if len(key) != KEY_BYTES:
            raise RunError(
                f"{path} holds {len(key)} bytes, a device key has {KEY_BYTES}; remove it"
            ) from None
        return key
    with os.fdopen(handle, "wb") as file:
        key = secrets.token_bytes(KEY_BYTES)
        file.write(key)
        file.flush()
        os.fsync(file.fileno())
    return key


@final
@dataclass(frozen=True, kw_only=True)
class Device:
    """Makes messages of images with an encoder whose leak was measured.

    Args:
        net: The received encoder and cut.
        shape: Channels, height and width of an image.
        law: All that decides a message besides the image; see `describe_law`.
        max_value: Largest absolute value that a message may have.
        leak: What one message may tell.
        limit: Of all distinct messages together, in bits.
        key: The device's secret key, 32 bytes.
        sent: The messages that left before.
    """

    net: SplitNet
    shape: tuple[int, ...]
    law: str
    max_value: float
    leak: Leak
    limit: float
    key: bytes
    sent: SentMessages

    @property
    def leaked_bits(self) -> float:
        """Return the bits that all messages so far may have told, at most."""
        return self.sent.total_bits

    def build_message(self, image: Float[Tensor, "C H W"]) -> bytes:
        """Encode an image, add the noise of this device to it, and count the message.

        Args:
            image: (C, H, W) in [0, 1].

        Returns:
            D values of float32, little-endian; the same image gives the same bytes.

        Raises:
            DataError: Another shape, or values outside [0, 1].
            LeakLimitError: All messages together would tell more than the limit.
        """
        if tuple(image.shape) != self.shape or not ((image >= 0) & (image <= 1)).all():
            raise DataError(
                f"the image is {tuple(image.shape)}, must be {self.shape} with values in [0, 1]"
            )
        fingerprint = compute_fingerprint(self.key, self.law, image)
        with torch.no_grad():
            z = self.net.encode(image.to(torch.float32)[None])[0]
        smashed = disturb_features(self.net.cut, z, fingerprint)
        if not (smashed.abs() <= self.max_value).all():
            raise DataError(
                f"the message exceeds +-{self.max_value:g} or is undefined; use a bounded encoder"
            )
        self.sent.add(fingerprint, self.leak.upper, self.limit)
        return smashed.numpy().astype("<f4").tobytes()
