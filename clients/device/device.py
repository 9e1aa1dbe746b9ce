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

from clients.device.keyed_noise import KEY_BYTES, disturb_features, fingerprint
from clients.leak_guard import Leak
from clients.service.schema import ModelCard
from fedcel.errors import DataError, LeakLimitError, RunError
from fedcel.files import lock_file
from fedcel.nets import SplitNet

MARK = 16  # bytes kept of a message's fingerprint


class Sent:
    """Which messages ever left, and what each may tell; in a file where one is given.

    A restart and other processes on the same file forget nothing. It holds fingerprints under the
    device's key: who reads it learns no image.
    """

    def __init__(self, path: Path | None = None) -> None:
        """RunError when the file is damaged."""
        self._path = path
        self._lock = Lock()
        self._known: set[str] = set()
        self._read = 0
        self.total = 0.0
        """Bits that all messages together may tell, at most."""
        if path:
            with lock_file(path) as file:
                self._catch_up(file)

    def __len__(self) -> int:
        """Return the number of distinct messages."""
        return len(self._known)

    def note(self, mark: bytes, bits: float, limit: float) -> None:
        """Count a message before it leaves, once.

        LeakLimitError when all messages together may tell more than `limit` bits with it.
        """
        name = mark[:MARK].hex()
        with self._lock:
            if self._path is None:
                if self._fits(name, bits, limit):
                    self._add(name, bits)
                return
            with lock_file(self._path) as file:
                self._catch_up(file)
                if self._fits(name, bits, limit):
                    file.write(f"{name} {bits!r}\n".encode())
                    file.flush()
                    os.fsync(file.fileno())
                    self._catch_up(file)  # counted once it is on the disk, never before

    def _fits(self, name: str, bits: float, limit: float) -> bool:
        """Say whether the message is new; LeakLimitError when it is, and one too many."""
        if name in self._known:
            return False
        if self.total + bits > limit:
            raise LeakLimitError(
                f"this message would be number {len(self) + 1}, of up to {bits:.3f} bits, "
                f"{self.total + bits:.1f} in all, the limit is {limit:g}; nothing was sent"
            )
        return True

    def _add(self, name: str, bits: float) -> None:
        self._known.add(name)
        self.total += bits

    def _catch_up(self, file: IO[bytes]) -> None:
        """Read what was written since the last time, by whomever."""
        file.seek(self._read)
        for line in file.read().splitlines():
            try:
                name, bits = line.decode().split()
                self._add(name, float(bits))
            except ValueError:
                raise RunError(
                    f"{self._path} has a line {line[:80]!r}, must be a mark and its bits; what was "
                    "sent is not known any more: begin with a new state folder"
                ) from None
        self._read = file.tell()


def describe_law(card: ModelCard, net: SplitNet) -> str:
    """Return what decides a message besides the image: as checked, not the version as stated."""
    return f"{card.encoder.sha256} {net.cut!r}"


def load_device_key(path: Path | None) -> bytes:
    """Return the secret key of a device: of its file, made at first use; else one for this process.

    RunError when the file is none, or others may read it.
    """
    if path is None:
        return secrets.token_bytes(KEY_BYTES)
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return read_key(path)
    with os.fdopen(handle, "wb") as file:
        key = secrets.token_bytes(KEY_BYTES)
        file.write(key)
        file.flush()
        os.fsync(file.fileno())
    return key


def read_key(path: Path) -> bytes:
    """Return the key in a file; RunError when it is none, or others may read it."""
    mode, key = path.stat().st_mode & 0o777, path.read_bytes()
    if mode & 0o077:
        raise RunError(f"{path} is open to others (mode {mode:o}); chmod it to 600")
    if len(key) != KEY_BYTES:
        raise RunError(f"{path} holds {len(key)} bytes, a device key has {KEY_BYTES}; remove it")
    return key


@final
@dataclass(frozen=True)
class Device:
    """Makes messages of images; its leak was measured before."""

    net: SplitNet
    shape: tuple[int, ...]
    law: str
    """All that decides a message besides the image: which encoder, which cut."""
    largest: float
    leak: Leak
    limit: float
    key: bytes
    sent: Sent

    @property
    def leaked(self) -> float:
        """Return the bits that all messages so far may have told, at most."""
        return self.sent.total

    def message(self, image: Float[Tensor, "C H W"]) -> bytes:
        """Return the message of an image and count it; the same image gives the same bytes.

        DataError on another shape or values outside [0, 1], LeakLimitError beyond the limit.
        """
        if tuple(image.shape) != self.shape or not ((image >= 0) & (image <= 1)).all():
            raise DataError(
                f"the image is {tuple(image.shape)}, must be {self.shape} with values in [0, 1]"
            )
        seed = fingerprint(self.key, self.law, image)
        with torch.no_grad():
            z = self.net.encode(image.to(torch.float32)[None])[0]
        found = disturb_features(self.net.cut, z, seed)
        if not (found.abs() <= self.largest).all():
            raise DataError(
                f"the message exceeds +-{self.largest:g} or is undefined; use a bounded encoder"
            )
        self.sent.note(seed, self.leak.upper, self.limit)
        return found.numpy().astype("<f4").tobytes()
