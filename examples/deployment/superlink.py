"""Flower's SuperLink with a door: what one reply may weigh, and one request.

superlink.py MEGABYTES OPTION...    the OPTIONs are those of flower-superlink

Flower 1.42 takes requests and replies of any size into memory and into its database. This starts
the same SuperLink with a check in front of it, where Flower's extensions put theirs: a request
above 16 MB is refused (an honest node sends arrays in pieces of 5 MB), and a reply of which all
pieces together are above MEGABYTES. Who is refused gets HTTP status 413; its reply never arrives.
A connection that has got its answer is closed after ten minutes, not after five seconds: asyncio
gives a closed TLS connection half a minute for what is still on its way, and drops the rest, so
that a link of 256 kbit/s never got the app's 2 MB.
Each connection takes a file: with the 1024 that many systems allow a process, as many slow
connections of anybody would keep all nodes out, so this takes as many as it may have.
"""

import resource
import sys
from collections import OrderedDict
from collections.abc import Awaitable, Callable, MutableMapping
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import health
import uvicorn
from cryptography import x509
from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.proto.message_pb2 import PushObjectRequest
from flwr.superlink import extensions
from flwr.superlink.cli.flower_superlink import flower_superlink
from google.protobuf.message import DecodeError
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

MEGABYTE = 1_000_000
MOST_OF_A_REQUEST = 16 * MEGABYTE
MOST_FILES = 65_536
SECONDS_OF_AN_ANSWER = 600
REMEMBERED_REPLIES = 16  # of a node, so that it cannot begin its count anew by taking turns


class ReplyDoor:
    """Counts the bytes of each node's replies; refuses what is above the limits."""

    def __init__(self, app: App, most_of_a_reply: int) -> None:
        self.app, self.most_of_a_reply = app, most_of_a_reply
        self.replies: dict[int, OrderedDict[str, int]] = {}  # node -> its replies -> their bytes
        print(f"replies of at most {most_of_a_reply // MEGABYTE} MB are taken", flush=True)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request in, or refuse it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        body = await read_body(scope, receive)
        if body is None:
            await refuse(f"a request above {MOST_OF_A_REQUEST // MEGABYTE} MB", scope, send)
        elif scope["path"] == "/v1/fleet/push-messages":
            await self.begin_reply(body, scope, receive, send)
        elif scope["path"] == "/v1/fleet/push-object":
            await self.add_to_reply(body, scope, receive, send)
        else:
            await self.app(scope, replay(body, receive), send)

    async def begin_reply(self, body: bytes, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a reply's head in; its pieces follow."""
        request = parse(PushMessagesRequest, body)

        def begin_count() -> None:
            if request and request.messages_list:
                replies = self.replies.setdefault(request.node.node_id, OrderedDict())
                answered = request.messages_list[0].metadata.reply_to_message_id
                replies[answered] = replies.pop(answered, 0)  # the last is the one that follows
                while len(replies) > REMEMBERED_REPLIES:
                    replies.popitem(last=False)

        await self.ask(body, scope, receive, send, on_acceptance=begin_count)

    async def add_to_reply(self, body: bytes, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a piece of a reply in, if the reply is not too large with it."""
        request = parse(PushObjectRequest, body)
        node = request.node.node_id if request else 0
        replies = self.replies.get(node)
        if not replies:  # Flower refuses it, too: nothing is expected
            await self.ask(body, scope, receive, send)
            return
        answered, size = next(reversed(replies.items()))
        if size + len(body) > self.most_of_a_reply:
            text = f"a reply above {self.most_of_a_reply // MEGABYTE} MB of node {node}"
            await refuse(text, scope, send)
            return
        replies[answered] += len(body)
        if not await self.ask(body, scope, receive, send):  # of somebody who is not that node
            replies[answered] -= len(body)

    async def ask(
        self,
        body: bytes,
        scope: Scope,
        receive: Receive,
        send: Send,
        *,
        on_acceptance: Callable[[], None] = lambda: None,
    ) -> bool:
        """Pass a request on; say whether it was accepted, of a node that is who it says it is."""
        is_accepted = False

        async def note_status(event: MutableMapping[str, Any]) -> None:
            nonlocal is_accepted
            if event["type"] == "http.response.start" and event["status"] < 400:
                is_accepted = True
                on_acceptance()  # before the node knows
            await send(event)

        await self.app(scope, replay(body, receive), note_status)
        return is_accepted


async def read_body(scope: Scope, receive: Receive) -> bytes | None:
    """Return a request's body, None where it is, or says that it is, too large."""
    announced = dict(scope["headers"]).get(b"content-length", b"0")
    if int(announced) > MOST_OF_A_REQUEST:
        return None
    body, more = bytearray(), True
    while more:
        event = await receive()
        if event["type"] == "http.disconnect":
            break
        body += event.get("body", b"")
        more = event.get("more_body", False)
        if len(body) > MOST_OF_A_REQUEST:
            return None
    return bytes(body)


def replay(body: bytes, receive: Receive) -> Receive:
    """Return what gives the body that was read, then whatever comes."""
    parts = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_again() -> MutableMapping[str, Any]:
        return parts.pop() if parts else await receive()

    return receive_again


def parse(kind: type[Any], body: bytes) -> Any | None:
    """Return a message of Flower's, None where it is none: Flower refuses it."""
    try:
        return kind.FromString(body)
    except DecodeError:
        return None


async def refuse(what: str, scope: Scope, send: Send) -> None:
    """Answer that something is too large, and end the connection."""
    print(f"refused {what}", file=sys.stderr, flush=True)

    async def receive() -> MutableMapping[str, Any]:
        return {"type": "http.disconnect"}

    answer = PlainTextResponse(f"refused: {what}", 413, {"connection": "close"})
    await answer(scope, receive, send)


def allow_files() -> None:
    """Take as many open files as the system gives this process for the asking."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST_FILES if hard == resource.RLIM_INFINITY else min(MOST_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def check_certificate() -> None:
    """Exit where the SuperLink's own processes could not reach it: runs would stand still."""
    options = health.read_options()
    path = Path(options.get("--ssl-certfile", ""))
    if not path.is_file():  # Flower says so
        return
    own = str(urlsplit(health.read_url("https")).hostname)
    extensions = x509.load_pem_x509_certificate(path.read_bytes()).extensions
    names = [e.value for e in extensions if isinstance(e.value, x509.SubjectAlternativeName)]
    if not any(fnmatch(own, str(name.value)) for listed in names for name in listed):
        sys.exit(
            f"{path} is not for {own}, where the SuperLink's own processes reach it; make one that "
            "is, with certificates.py or by your authority"
        )


def main() -> None:
    """Start the SuperLink behind its door."""
    try:
        limit = int(sys.argv.pop(1)) * MEGABYTE
    except (IndexError, ValueError):
        sys.exit(__doc__)
    check_certificate()
    allow_files()
    before = extensions.get_middleware

    def get_middleware() -> tuple[Middleware, ...]:
        return (Middleware(ReplyDoor, most_of_a_reply=limit), *before())

    extensions.get_middleware = get_middleware
    uvicorn.run = partial(uvicorn.run, timeout_keep_alive=SECONDS_OF_AN_ANSWER)
    health.watch(health.read_url("https"))
    flower_superlink()


if __name__ == "__main__":
    main()
