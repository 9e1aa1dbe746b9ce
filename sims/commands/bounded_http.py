"""uvicorn's HTTP protocol with bounds on what one connection may send, queue and leave unread.

uvicorn on httptools keeps headers, trailers, pipelined requests and unread answers without an end;
its protocol on h11 bounds the headers alone, in Python that is slower.
"""

import asyncio
import math
import sys
from contextlib import suppress
from fcntl import ioctl
from termios import TIOCOUTQ

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

INVALID_REQUEST = "Invalid HTTP request received."  # as uvicorn says it
MAX_HEAD_BYTES = 16_384  # of address and headers, of trailers, of what stands between two chunks
PIECE_BYTES = 4096  # that the parser gets at once: how much more than allowed it may keep
LAST_STALL_SECONDS = 5  # that an answer may stay unread once the server ends


class HoldableFlow(FlowControl):
    """uvicorn's flow control, which by itself reads on after every answer."""

    is_held = False

    def resume_reading(self) -> None:
        """Read on, unless bytes that came earlier still wait for the parser."""
        if not self.is_held:
            super().resume_reading()


class BoundedHttpProtocol(HttpToolsProtocol):
    """Bounds a connection's memory, and closes connections that stand still.

    - Parser input comes in pieces, and none while a request waits for the answer before it.
    - More than `MAX_HEAD_BYTES` without a byte of a body are answered with 400.
    - A header that is not whole in time, and an answer that is not read, end the connection.
    """

    flow: HoldableFlow
    _header_timer: asyncio.TimerHandle | None = None
    _stall_timer: asyncio.TimerHandle | None = None
    _answered_cycle: RequestResponseCycle | None = None
    """Request under way; `cycle` is the last one that came."""
    _head_bytes = 0
    _piece_size = 0
    _unsent: float = math.inf

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a header."""
        super().connection_made(transport)
        self.flow = HoldableFlow(transport)
        self._unparsed = bytearray()
        self._stall_seconds: float = self.timeout_keep_alive
        self._restart_header_timer()
        self._watch_unsent()

    def data_received(self, data: bytes) -> None:
        """Take what came; a part of a header does not prolong the wait for the rest."""
        self._unparsed += data
        self._parse()
        self._restart_header_timer()

    def on_message_begin(self) -> None:
        """Count a head from the piece that it begins in."""
        self._head_bytes = self._piece_size
        super().on_message_begin()

    def on_body(self, body: bytes) -> None:
        """Count anew what is no body."""
        self._head_bytes = 0
        super().on_body(body)

    def on_headers_complete(self) -> None:
        """Begin to answer, or let the request wait."""
        super().on_headers_complete()
        if not self.pipeline:
            self._answered_cycle = self.cycle

    def on_response_complete(self) -> None:
        """Go on with the next request, and with what came after it."""
        if self.pipeline:
            self._answered_cycle = self.pipeline[-1][0]
        super().on_response_complete()
        if self._unparsed:
            self._parse()
            self._restart_header_timer()

    def resume_writing(self) -> None:
        """Go on writing; the reader has taken most of what was sent."""
        self._unsent = math.inf
        super().resume_writing()

    def shutdown(self) -> None:
        """End with the answer under way; wait less for a reader."""
        super().shutdown()
        self._stall_seconds = min(self._stall_seconds, LAST_STALL_SECONDS)
        self._watch_unsent()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait for nothing more."""
        if self._answered_cycle:
            self._answered_cycle.disconnected = True
            self._answered_cycle.message_event.set()
        super().connection_lost(exc)
        self._unparsed.clear()
        self._cancel_header_timer()
        if self._stall_timer:
            self._stall_timer.cancel()

    def _parse(self) -> None:
        """Give the parser what came, as long as no request waits behind another."""
        if self.flow.is_held:
            self.flow.is_held = False
            self.flow.resume_reading()
        while self._unparsed and not (self.pipeline or self.transport.is_closing()):
            if self._head_bytes > MAX_HEAD_BYTES:
                self.logger.warning(INVALID_REQUEST)
                self.send_400_response(INVALID_REQUEST)
                break
            piece = bytes(self._unparsed[:PIECE_BYTES])
            del self._unparsed[:PIECE_BYTES]
            self._piece_size = len(piece)
            self._head_bytes += self._piece_size
            super().data_received(piece)
        if self.transport.is_closing():
            self._unparsed.clear()
        elif self._unparsed:
            self.flow.pause_reading()
            self.flow.is_held = True

    def _watch_unsent(self) -> None:
        """Look again in a while whether answers are read."""
        if self._stall_timer:
            self._stall_timer.cancel()
        self._unsent = count_unsent(self.transport)
        self._stall_timer = self.loop.call_later(self._stall_seconds, self._close_if_stalled)

    def _close_if_stalled(self) -> None:
        """Give the connection up if nothing was read of its answers, or of its end, meanwhile."""
        unsent = count_unsent(self.transport)
        is_unread = unsent >= self._unsent > 0
        is_over = self.transport.is_closing() and not (unsent or self._unsent)
        if is_unread or is_over:
            self.transport.abort()
        else:
            self._watch_unsent()

    def _restart_header_timer(self) -> None:
        if self.cycle and not self.cycle.response_complete:  # a header is there, its answer not yet
            self._cancel_header_timer()
        elif self._header_timer is None:
            self._header_timer = self.loop.call_later(self.timeout_keep_alive, self.transport.abort)

    def _cancel_header_timer(self) -> None:
        if self._header_timer:
            self._header_timer.cancel()
            self._header_timer = None


def count_unsent(transport: asyncio.Transport) -> int:
    """Return the bytes that the other end has not taken, here and in the system's buffer.

    The system takes nothing for seconds while a slow reader empties its buffer.
    """
    unsent = transport.get_write_buffer_size()
    with suppress(OSError):  # not every system counts them
        queued = ioctl(transport.get_extra_info("socket").fileno(), TIOCOUTQ, bytes(4))
        unsent += int.from_bytes(queued, sys.byteorder)
    return unsent
