"""The crash-safe record of what left a device: counted before it leaves, shared by processes."""

import math
import os
from contextlib import nullcontext
from pathlib import Path
from threading import Lock
from typing import IO, NamedTuple

from fedcel.errors import LeakLimitError, RunError
from fedcel.files import lock_file

MARK_BYTES = 16
"""Bytes of a message's fingerprint that are kept."""
UNKNOWN_GROUP = "unknown"
"""Group of messages whose line was cut off: they may be of any, and are charged to each."""
TORN = b"torn"
"""Word behind a line that was cut off, before the bits that it is charged."""


class GroupTotal(NamedTuple):
    """Leak of all messages of a group together.

    A group is of messages that show nearly the same: frames of a scene, pictures of a person.
    """

    messages: int
    bits: float
    """The sum of what each may tell, which they never exceed together."""


class SentMessages:
    """Record of the messages that ever left, and the leak of each; in a file where one is given.

    A restart and other processes on the same file forget nothing. It holds fingerprints under the
    device's key: who reads it learns no image. RunError where the file is damaged.

    A last line that was cut off, as by a loss of power, counts as a message that left, though it
    most likely did not: of the most bits that a message of the file or the next one has, and of
    every group. It is counted when the next message is.

    Args:
        path: The file, made where there is none; None: remembered as long as the process lives.
    """

    def __init__(self, path: str | Path | None = None) -> None:
        self._path = path = None if path is None else Path(path)
        self._lock = Lock()
        self._marks: set[str] = set()
        self._groups: dict[str, GroupTotal] = {}
        self._offset = 0
        self._is_torn = False
        self._largest_bits = 0.0
        self.total_bits = 0.0
        """Bits that all messages together may tell, at most."""
        if path:
            with lock_file(path) as file:
                self._read_new_lines(file)

    def __len__(self) -> int:
        """Return the number of distinct messages."""
        return len(self._marks)

    def add(
        self,
        fingerprint: bytes,
        bits: float,
        limit: float,
        *,
        group: bytes | None = None,
        group_limit: float = math.inf,
    ) -> None:
        """Count a message before it leaves, once.

        Args:
            fingerprint: The message's fingerprint; a repeat has the same.
            bits: What the message may tell, at most.
            limit: Bits that all messages together may tell.
            group: Fingerprint of what it shows, shared by messages that show nearly the same; None:
                it is alone.
            group_limit: Bits that all messages of its group together may tell.

        Raises:
            LeakLimitError: All messages together, or those of its group, may tell more than the
                limit with it.
        """
        mark = fingerprint[:MARK_BYTES].hex()
        name = (group or fingerprint)[:MARK_BYTES].hex()
        with self._lock, nullcontext() if self._path is None else lock_file(self._path) as file:
            if file is not None:
                self._read_new_lines(file)
                if self._is_torn:
                    charged = max(self._largest_bits, bits)
                    self._append(file, b" %s %a" % (TORN, charged))
            if mark in self._marks:
                return
            total = self._total_of(name)
            if self.total_bits + bits > limit:
                raise LeakLimitError(
                    f"this message would be number {len(self) + 1}, of up to {bits:.3f} bits, "
                    f"{self.total_bits + bits:.1f} in all, the limit is {limit:g}; nothing was sent"
                )
            if total.bits + bits > group_limit:
                raise LeakLimitError(
                    f"this message would be number {total.messages + 1} of nearly the same image, "
                    f"of up to {bits:.3f} bits, {total.bits + bits:.1f} of it in all, its limit is "
                    f"{group_limit:g}; nothing was sent"
                )
            if file is None:
                self._remember(mark, bits, name)
                return
            line = f"{mark} {bits!r}" if name == mark else f"{mark} {bits!r} {name}"
            self._append(file, line.encode())

    def _append(self, file: IO[bytes], line: bytes) -> None:
        """Write the rest of a line; it is counted once it is on the disk, never before."""
        file.write(line + b"\n")
        file.flush()
        os.fsync(file.fileno())
        self._read_new_lines(file)

    def _total_of(self, group: str) -> GroupTotal:
        """Return the total of a group, with the messages that may be of any."""
        totals = [self._groups.get(name, GroupTotal(0, 0.0)) for name in (group, UNKNOWN_GROUP)]
        return GroupTotal(sum(t.messages for t in totals), sum(t.bits for t in totals))

    def _remember(self, mark: str, bits: float, group: str) -> None:
        self._marks.add(mark)
        total = self._groups.get(group, GroupTotal(0, 0.0))
        self._groups[group] = GroupTotal(total.messages + 1, total.bits + bits)
        self.total_bits += bits
        self._largest_bits = max(self._largest_bits, bits)

    def _read_new_lines(self, file: IO[bytes]) -> None:
        """Read what was written since the last time, by any process."""
        if os.fstat(file.fileno()).st_size < self._offset:
            raise RunError(
                f"{self._path} is shorter than before: it was replaced or cut off while it is in "
                "use, and what was sent is not known any more; put it back and start again"
            )
        file.seek(self._offset)
        lines, newline, remainder = file.read().rpartition(b"\n")
        for line in filter(None, lines.split(b"\n")):
            try:
                *words, last = line.split()
                if words[-1:] == [TORN]:
                    self._remember(f"torn {len(self)}", float(last), UNKNOWN_GROUP)
                    continue
                mark, bits, *group = line.decode().split()
                (name,) = group or [mark]  # a message that is alone has no third word
                bytes.fromhex(name)
                self._remember(mark, float(bits), name)
            except ValueError:
                raise RunError(
                    f"{self._path} has a line {line[:80]!r}, must be a mark, its bits and a group; "
                    "what was sent is not known any more: begin with a new state folder"
                ) from None
        self._offset += len(lines + newline)
        self._is_torn = bool(remainder)
