"""The crash-safe record of what left a device: counted before it leaves, shared by processes."""

import os
from pathlib import Path
from threading import Lock
from typing import IO

from fedcel.errors import LeakLimitError, RunError
from fedcel.files import lock_file

MARK_BYTES = 16
"""How much of a message's fingerprint is kept."""


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
            fingerprint: The message's fingerprint; a repeat has the same.
            bits: What the message may tell, at most.
            limit: Bits that all messages together may tell.

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
