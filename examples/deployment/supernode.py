"""Flower's SuperNode that ends when it can no longer work: then a service manager starts it again.

supernode.py OPTION...    the OPTIONs are those of flower-supernode

In Flower 1.42 an error of the server (its database is locked, say) ends the thread that says that
the node is alive, or the loop that takes messages; the process stays, as a node that is offline for
good. Here either ends the process with status 1. A node whose signature the server refuses ends
there with status 0 and no reason; here with status 1 and the reason. Flower gives each request 30 s
to leave, of up to 5 MB; here each piece of it has them, so that slow links carry updates.
"""

import os
import sys
import threading
import traceback
from collections.abc import Iterable, Iterator
from email.utils import parsedate_to_datetime
from typing import Any

import health
import httpx
from flwr.supercore import date
from flwr.supercore.protobuf.client import ProtobufCall, ProtobufRequestContext
from flwr.supernode import fleet_http_connection
from flwr.supernode.cli.flower_supernode import flower_supernode
from flwr.supernode.fleet_http_client import FleetHttpClient

MOST_SECONDS_AHEAD, MOST_SECONDS_BEHIND = 4.0, 300.0  # of the server; Flower allows 5 and 305
PIECE = 16_384  # bytes that are written at once


class Pieces(httpx.SyncByteStream):
    """Body of a request, which is written piece by piece."""

    def __init__(self, content: bytes) -> None:
        self.content = content

    def __iter__(self) -> Iterator[bytes]:
        """Yield the pieces."""
        for start in range(0, len(self.content), PIECE):
            yield self.content[start : start + PIECE]


class PieceSender:
    """Interceptor of Flower's client that lets requests leave in pieces."""

    def intercept(self, context: ProtobufRequestContext, call_next: ProtobufCall) -> httpx.Response:
        """Send a request."""
        context.request.stream = Pieces(context.request.content)
        return call_next(context)


class NodeClient(FleetHttpClient):
    """Flower's client of the server, which says why the server refuses this node."""

    def __init__(self, *words: Any, interceptors: Iterable[Any] = (), **options: Any) -> None:
        super().__init__(*words, interceptors=(*interceptors, PieceSender()), **options)

    def _unary_unary(self, **call: Any) -> Any:
        """Send a request; end the process where its signature is refused."""
        try:
            return super()._unary_unary(**call)
        except httpx.HTTPStatusError as error:
            if error.response.status_code == httpx.codes.UNAUTHORIZED:
                end_process(explain_refusal(error.response.headers.get("date", "")))
            raise


def explain_refusal(server_date: str) -> str:
    """Say why a server that answered at this date refuses what the node signed."""
    try:
        ahead = (date.now() - parsedate_to_datetime(server_date)).total_seconds()
    except ValueError:
        ahead = 0.0
    if not -MOST_SECONDS_BEHIND <= ahead <= MOST_SECONDS_AHEAD:
        direction = "ahead of" if ahead > 0 else "behind"
        return f"its clock is {abs(ahead):.0f} s {direction} the server's; set it, by NTP say"
    return "the server knows its key no longer; register it again: flwr supernode register"


def end_process(reason: str) -> None:
    """End at once: Flower's threads would keep the process."""
    print(f"this node can no longer work and ends: {reason}", file=sys.stderr, flush=True)
    os._exit(1)


def end_with_thread(failure: threading.ExceptHookArgs) -> None:
    """End because a thread has died."""
    traceback.print_exception(failure.exc_value)
    end_process(f"{failure.exc_type.__name__} in a thread")


if __name__ == "__main__":
    threading.excepthook = end_with_thread
    fleet_http_connection.FleetHttpClient = NodeClient  # type: ignore[attr-defined]
    health.watch(health.read_url("http"))
    flower_supernode()
    end_process("its loop over messages has ended")
