"""Links of hosts in user space: frames are delayed, lost and limited in rate on their way."""

import fcntl
import heapq
import math
import os
import random
import select
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

TUNSETIFF, IFF_TAP, IFF_NO_PI = 0x400454CA, 0x0002, 0x1000
FRAME = 2048
QUEUE = 64_000
"""Bytes that wait in front of a link at most; what comes then is lost, as at a modem."""


class Links:
    """Relayed links, all alike, each between two network interfaces made here.

    The attributes may change at any time.
    """

    def __init__(self) -> None:
        self.delay = 0.0
        """Seconds that each frame takes longer, in either direction."""
        self.loss = 0.0
        """Probability that a frame is lost."""
        self.rate = math.inf
        """Bytes a second, in either direction."""
        self.lost = 0
        """Frames lost so far."""
        self._random = random.Random(0)
        self._ends: dict[int, int] = {}  # descriptor -> descriptor of the other end
        self._free: dict[int, float] = {}  # when an end has sent what waits for it
        self._waiting: list[tuple[float, int, int, bytes]] = []
        self._lock, self._is_over = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._relay, daemon=True)
        self._thread.start()

    def add(self, *names: str) -> None:
        """Make a link's two interfaces; OSError where that is refused."""
        first, second = (open_tap(name) for name in names)
        with self._lock:
            self._ends |= {first: second, second: first}

    @contextmanager
    def change(
        self, *, delay: float = 0.0, loss: float = 0.0, rate: float = math.inf
    ) -> Iterator[None]:
        """Set all links for the time of the block."""
        self.delay, self.loss, self.rate = delay, loss, rate
        try:
            yield
        finally:
            self.delay, self.loss, self.rate = 0.0, 0.0, math.inf

    def close(self) -> None:
        self._is_over.set()
        self._thread.join(10)
        for end in self._ends:
            os.close(end)

    def _relay(self) -> None:
        count = 0
        while not self._is_over.is_set():
            now = time.monotonic()
            while self._waiting and self._waiting[0][0] <= now:
                _, _, end, frame = heapq.heappop(self._waiting)
                with suppress(OSError):  # the interface is down, or gone with its host
                    os.write(end, frame)
            with self._lock:
                ends = [*self._ends]
            due = self._waiting[0][0] - now if self._waiting else 0.05
            for end in select.select(ends, [], [], min(0.05, max(0.0, due)))[0]:
                try:
                    frame = os.read(end, FRAME)
                except OSError:
                    continue
                count += 1
                self._send(self._ends[end], frame, count)

    def _send(self, end: int, frame: bytes, count: int) -> None:
        now = time.monotonic()
        begin = max(now, self._free.get(end, 0.0))
        if self._random.random() < self.loss or (begin - now) * self.rate > QUEUE:
            self.lost += 1
            return
        self._free[end] = begin + len(frame) / self.rate
        heapq.heappush(self._waiting, (self._free[end] + self.delay, count, end, frame))


def open_tap(name: str) -> int:
    """Make a network interface whose frames are read and written here."""
    end = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        fcntl.ioctl(end, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TAP | IFF_NO_PI))
    except OSError:
        os.close(end)
        raise
    return end
