"""The middleware around an application: what leaves, what the application sees, what is refused."""

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI, Request, Response
from starlette.middleware.cors import CORSMiddleware
from starlette.types import Message

from clients.service import PrivateLayer
from clients.service.access import add_key, key_table_path
from clients.service.middleware import PrivacyMiddleware, read_logits
from clients.service.problems import PROBLEM_MEDIA_TYPE, ProblemKind
from fedcel.privacy import LabelOnly
from fedcel.privacy.ledger import MICRO, Ledger

SECRET = "the application's own words"


class Server:
    """An application of three classes behind the middleware, and a client with 12 epsilon."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "budget.db"
        with Ledger.open(self.path) as ledger:
            ledger.grant("phone", 12 * MICRO)
        self.key = add_key(key_table_path(self.path), "phone", None, time.time())
        self.seen: list[dict[str, str]] = []
        self.reply = Response(json.dumps({"logits": [0, 3, 1], "note": SECRET}))
        self.layer = PrivateLayer(LabelOnly(4, 3), self.path, model="three-1")
        app = FastAPI()

        @app.post("/predict")
        async def predict(request: Request) -> Response:
            self.seen.append(dict(request.headers))
            self.body = await request.body()
            if self.body == b"break":
                raise RuntimeError(SECRET)
            return self.reply

        @app.get("/healthz")
        @app.get("/debug")
        async def tell() -> str:
            return SECRET

        self.app = PrivacyMiddleware(
            app, layer=self.layer, paths=["/predict"], open_paths=["/healthz"], rate=1e6
        )

    def ask(self, *contents: bytes, path: str = "/predict", **headers: str) -> list[httpx.Response]:
        """Send inputs at once; `headers` replace the right ones, an empty one removes it."""
        right = {"authorization": f"Bearer {self.key}", "content-type": "text/plain"}

        async def send_all() -> list[httpx.Response]:
            transport = httpx.ASGITransport(self.app)
            async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
                posts = []
                for content in contents:
                    fields = {**right, "idempotency-key": f"request-{time.monotonic_ns()}"}
                    fields |= {key.replace("_", "-"): value for key, value in headers.items()}
                    sent = {key: value for key, value in fields.items() if value}
                    posts.append(client.post(path, content=content, headers=sent))
                replies = await asyncio.gather(*posts)
            return list(replies)

        return asyncio.run(send_all())

    @property
    def spent(self) -> float:
        with Ledger.open(self.path) as ledger:
            assert ledger.verify() == []
            return ledger.balance("phone").spent / MICRO


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """Yield an application behind the middleware."""
    server = Server(tmp_path)
    yield server
    server.layer.close()


def expect_problem(reply: httpx.Response, kind: ProblemKind) -> None:
    """Hold a refusal to its kind; it says nothing of the application's."""
    assert reply.headers["content-type"] == PROBLEM_MEDIA_TYPE
    assert (reply.status_code, reply.json()["type"]) == (kind.status, kind.urn)
    assert SECRET not in reply.text


def test_only_the_private_answer_leaves(server: Server) -> None:
    """Of an input and its repeat at once: one charge, and no word of the application."""
    first, again = server.ask(b"image", b"image")
    assert first.json()["values"] == again.json()["values"]
    assert sorted(first.json()["values"]) == [0, 0, 4.0]
    assert {first.json()["fresh"], again.json()["fresh"]} == {True, False}
    assert SECRET not in first.text and first.headers["cache-control"] == "no-store"
    assert server.spent == 4


def test_each_request_may_have_an_event_loop_of_its_own(server: Server) -> None:
    """As under a test client without a lifespan, where each ends with its request."""
    assert [server.ask(content)[0].status_code for content in (b"1", b"2", b"3")] == [200] * 3
    assert server.spent == 12


def test_the_application_sees_what_decides_the_answer_and_no_key(server: Server) -> None:
    """Other headers could make another answer of the same message."""
    server.ask(b"image", x_variant="b", cookie="a=b")
    assert {*server.seen[0]} == {"content-type", "content-length"}
    assert server.body == b"image"


def test_address_and_type_are_part_of_the_message(server: Server) -> None:
    """Another query or content type is another input, paid by itself."""
    server.ask(b"image")
    server.ask(b"image", path="/predict?crop=1")
    server.ask(b"image", content_type="image/png")
    assert server.spent == 12


def form(boundary: str, *, name: str = "image.png", content: bytes = b"pixels") -> bytes:
    """Return a form with one file, as browsers send it."""
    head = f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n\r\n'
    return head.encode() + content + f"\r\n--{boundary}--\r\n".encode()


def test_the_same_content_is_paid_once(server: Server) -> None:
    """However its library spells JSON, and whatever boundary it draws for a form."""
    compact, spaced = b'{"image":[1.5,2],"a":"x"}', b'{ "image": [1.5,\n2], "a": "\\u0078" }\n'
    replies = server.ask(compact, spaced, content_type="application/json")
    assert replies[0].json()["values"] == replies[1].json()["values"] and server.spent == 4
    for boundary in ("abc", "d1f"):
        server.ask(form(boundary), content_type=f"multipart/form-data; boundary={boundary}")
    assert server.spent == 8


@pytest.mark.parametrize("is_outermost", [True, False])
def test_browsers_need_the_cors_middleware_outermost(server: Server, is_outermost: bool) -> None:
    """Else the preflight is refused with the remedy; nothing is charged for one."""
    allowed = {"allow_origins": ["http://page"], "allow_methods": ["POST"]}
    app = FastAPI()
    if not is_outermost:
        app.add_middleware(CORSMiddleware, **allowed)
    app.add_middleware(PrivacyMiddleware, layer=server.layer, paths=["/predict"])
    if is_outermost:
        app.add_middleware(CORSMiddleware, **allowed)
    headers = {"origin": "http://page", "access-control-request-method": "POST"}

    async def send() -> list[httpx.Response]:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
            preflight = await client.options("/predict", headers=headers)
            return [preflight, await client.post("/predict", headers=headers)]

    preflight, refused = asyncio.run(send())
    assert server.spent == 0 and refused.status_code == 401
    if is_outermost:
        assert preflight.status_code == 200
        assert refused.headers["access-control-allow-origin"] == "http://page"
    else:
        expect_problem(preflight, ProblemKind.METHOD)
        assert "CORSMiddleware after PrivacyMiddleware" in preflight.json()["detail"]


@pytest.mark.parametrize(
    ("headers", "kind"),
    [
        ({"authorization": ""}, ProblemKind.UNAUTHENTICATED),
        ({"authorization": "Bearer no"}, ProblemKind.UNAUTHENTICATED),
        ({"idempotency_key": ""}, ProblemKind.INVALID),
        ({"path": "/debug"}, ProblemKind.NOT_FOUND),
        ({"path": "/predict/"}, ProblemKind.NOT_FOUND),
        ({"path": "/docs"}, ProblemKind.NOT_FOUND),
    ],
)
def test_who_and_where_is_wrong_never_reaches_the_application(
    server: Server, headers: dict[str, str], kind: ProblemKind
) -> None:
    """Nothing is charged."""
    expect_problem(server.ask(b"image", **headers)[0], kind)
    assert server.seen == [] and server.spent == 0


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (422, SECRET, ProblemKind.INVALID),
        (503, SECRET, ProblemKind.FAILED),
        (200, SECRET, ProblemKind.FAILED),
        (200, '{"logits": [1, 2]}', ProblemKind.FAILED),
        (200, '{"logits": [1, 2, 1%s]}' % ("0" * 400), ProblemKind.FAILED),
        (200, '{"logits": [1, 2, NaN]}', ProblemKind.INVALID),
    ],
)
def test_what_has_no_logits_is_not_charged(
    server: Server, status: int, body: str, kind: ProblemKind
) -> None:
    """An error, other words, too few numbers, undefined ones."""
    server.reply = Response(body, status)
    expect_problem(server.ask(b"image")[0], kind)
    assert server.spent == 0


def test_an_applications_fault_is_told_without_its_words(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is charged; the next input is answered; the host's log does not repeat the input."""
    broken, right = server.ask(b"break", b"image")
    assert "the application failed: " in caplog.text and "Traceback" not in caplog.text
    expect_problem(broken, ProblemKind.FAILED)
    assert right.status_code == 200 and server.spent == 4


def test_budgets_and_sizes_end(server: Server) -> None:
    """Three answers, then 403 with what is left; a long body is never read whole."""
    replies = server.ask(b"1", b"2", b"3", b"4")
    assert sorted(reply.status_code for reply in replies) == [200, 200, 200, 403]
    expect_problem(server.ask(b"x" * (2**20 + 1))[0], ProblemKind.TOO_LARGE)
    assert server.ask(b"1")[0].status_code == 200  # a repeat is still given


def test_a_ledger_that_cannot_be_written_answers_nothing(server: Server) -> None:
    """503; the application's answer stays inside."""
    server.ask(b"1")
    assert server.layer._opened
    server.layer._opened.ledger.db.execute("PRAGMA query_only = ON")
    expect_problem(server.ask(b"2")[0], ProblemKind.LEDGER)


def test_what_is_open_passes_and_websockets_do_not(server: Server) -> None:
    """A socket would be a way around the charge."""
    sent: list[Message] = []

    async def run() -> None:
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(server.app), base_url="http://here"
        ) as client:
            assert SECRET in (await client.get("/healthz")).text
            assert (await client.get("/predict")).status_code == 405

        async def send(message: Message) -> None:
            sent.append(message)

        async def receive() -> Message:
            return {"type": "websocket.connect"}

        await server.app({"type": "websocket", "path": "/predict"}, receive, send)

    asyncio.run(run())
    assert sent == [{"type": "websocket.close", "code": 1008}]


def test_rows_in_a_list_of_one_are_read() -> None:
    """As batching servers answer."""
    assert read_logits(b'{"logits": [[1, 2.5]]}') == [1, 2.5]
    for body in (b"[]", b'{"logits": "1"}', b'{"logits": [[1], [2]]}', b'{"logits": [true]}'):
        with pytest.raises(ValueError, match="logits"):
            read_logits(body)
