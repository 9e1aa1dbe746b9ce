"""The HTTP service: private answers to smashed data.

The answers protect the INPUT of a question against whoever reads the answer, per question; the
images that the model was trained on are not protected by them, and answers add up. The service
itself reads the messages: what they tell of an image is up to encoder and noise at the cut.
"""

import asyncio
import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from clients import service_messages
from clients.service.access import (
    KeyExpiry,
    KeyStore,
    RateLimiter,
    StoredKey,
    describe_end,
    key_table_path,
)
from clients.service.answer_desk import AnswerDesk, DeskLink, ThreadDesk
from clients.service.answering import Query
from clients.service.batching import Batcher, FullError
from clients.service.charged_answers import PrivateAnswer
from clients.service.desk_process import AnsweringError
from clients.service.model import ServedModel
from clients.service.monitoring import LOGGER, Metrics, RequestMonitor
from clients.service.problems import (
    PROBLEM_MEDIA_TYPE,
    ProblemError,
    ProblemKind,
    describe_place,
    explain_refusal,
    send_problem,
    send_reply,
)
from clients.service.query import BINARY_TYPE, JSON_TYPE, RequestHead, parse_query
from clients.service.telemetry import Telemetry
from clients.service.versions import (
    ModelOffer,
    Reload,
    ServedVersion,
    check_same_price,
)
from fedcel.errors import FedcelError, LedgerError, RunError
from fedcel.privacy.ledger import MICRO, Balance, LedgerAddress, Refusal, to_micro_epsilon

QUERY_PATH = "/v1/query"
READ_PATHS = ("/v1/model", "/v1/encoder", "/v1/budget")
DAY_SECONDS = 86_400.0
PROBE_SECONDS = 10.0
"""How long a write to the ledger shows that it can be written."""
ANSWER_HEADERS = {"Content-Type": JSON_TYPE, "Cache-Control": "no-store"}
KEY_DOCUMENTATION: dict[str, Any] = {"security": [{"key": []}]}
QUERY_DOCUMENTATION: dict[str, Any] = {
    "parameters": [
        {
            "name": name,
            "in": "header",
            "required": False,
            "description": f"With {BINARY_TYPE}.",
            "schema": {"type": "string", "pattern": pattern},
        }
        for name, pattern in (
            ("Idempotency-Key", service_messages.REQUEST_ID_PATTERN),
            ("Model-Version", service_messages.VERSION_PATTERN),
        )
    ]
    + [{"name": "uncertainty", "in": "query", "schema": {"type": "boolean", "default": False}}],
    "requestBody": {
        "required": True,
        "content": {
            BINARY_TYPE: {
                "schema": {
                    "type": "string",
                    "format": "binary",
                    "description": "D values of float32, little-endian.",
                }
            },
            JSON_TYPE: {"schema": service_messages.Question.model_json_schema()},
        },
    },
}


class Limits(NamedTuple):
    """How much the service takes at once."""

    queue: int = 256
    """Questions that wait, at most."""
    batch: int = 128
    """Questions answered together, at most."""
    rate: float = 50.0
    """Questions a second of one client, on average."""
    read_rate: float | None = None
    """Requests a second of one client to each other address of /v1; None: as `rate`."""


class Service:
    """A model, and those it replaced, on one ledger; `start` and `end` within one event loop.

    Ledger and models are at a desk, off the event loop. `on_failure` is called where that ends by
    itself: nothing can be answered any more, and `failure` says why.
    """

    _loop: asyncio.AbstractEventLoop
    _key_timer: asyncio.TimerHandle

    def __init__(
        self,
        offer: ModelOffer,
        ledger: LedgerAddress,
        limits: Limits,
        *,
        keys: Path | None = None,
        reload: Reload | None = None,
        desk: DeskLink | None = None,
    ) -> None:
        self.offer = offer
        self.model = offer.model
        self.older_models: dict[str, ServedModel] = {}
        """Replaced models that are still answered, by version."""
        self.limits = limits
        self._reload = reload
        self._reloading = asyncio.Lock()
        self._is_started = False
        self._is_reload_pending = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._versions: dict[str, ServedVersion] = {}
        self._ends: dict[str, asyncio.TimerHandle] = {}
        self.keys = KeyStore(key_table_path(ledger, keys))
        self.rates = RateLimiter(limits.rate, time.monotonic)
        read_rate = limits.rate if limits.read_rate is None else limits.read_rate
        self._read_rates = {path: RateLimiter(read_rate, time.monotonic) for path in READ_PATHS}
        self.metrics = Metrics()
        self.is_ready = False
        self.is_ending = False
        self.failure: FedcelError | None = None
        self.on_failure: Callable[[], None] = do_nothing
        self.desk = desk or ThreadDesk()
        self._ledger_address = ledger
        self._probe: asyncio.Task[None] | None = None
        self._wrote_at = -math.inf
        self._under_way: Counter[str] = Counter()
        """Queries that wait for an answer, by the version that they were made for."""

    async def start(self) -> None:
        """Open the ledger and take questions; LedgerError when it cannot be opened."""
        try:
            await self._start()
        except Exception as error:
            self.failure = error if isinstance(error, FedcelError) else None
            LOGGER.error("start failed", extra={"reason": describe_reason(error)})
            await self.desk.close()
            raise

    async def _start(self) -> None:
        self._loop = asyncio.get_running_loop()
        await self.desk.open(self._ledger_address, self._fail_for_good)
        self._serve(await self._add_version(self.offer))
        self.batcher = Batcher(
            self._answer_batch,
            max_batch=self.limits.batch,
            max_waiting=self.limits.queue,
            at_once=self.desk.batches_at_once,
        )
        await self.batcher.start()
        self.is_ready = True
        LOGGER.info("started", extra={"model": self.model.version})
        self.warn_of_keys()
        self._is_started = True
        if self._is_reload_pending:
            self._begin_reload()

    async def end(self) -> None:
        """Answer what waits, take nothing more, close the ledger."""
        self.is_ready = False
        self.is_ending = True
        for timer in (*self._ends.values(), self._key_timer):
            timer.cancel()
        for task in self._tasks:
            task.cancel()
        await self.batcher.close()
        await self.desk.close()
        LOGGER.info("drained")

    def request_reload(self) -> None:
        """Read the run again soon, or once the service has started.

        A handler of a signal may call it.
        """
        if self.is_ending:
            LOGGER.warning("reload ignored", extra={"reason": "the service is ending"})
        elif self._is_started:
            self._loop.call_soon_threadsafe(self._begin_reload)
        else:
            self._is_reload_pending = True

    async def reload(self) -> None:
        """Serve what the run holds now, beside what it replaces; what cannot be served is logged.

        The old version is answered until its grace ends, /v1/model and /v1/encoder give the new.
        """
        if self._reload is None:
            return
        async with self._reloading:
            try:
                offer = await asyncio.to_thread(self._reload.load)
                version = self._versions.get(offer.model.version)
                if version is None:
                    version = await self._add_version(offer)
                else:
                    check_same_price(version.offer, offer)
            except Exception as error:  # the old model answers on, whatever is wrong with the new
                reason = {"model": self.model.version, "reason": describe_reason(error)}
                self.metrics.reloads.labels("refused").inc()
                LOGGER.error("reload refused", extra=reason)
                return
            if self.is_ending:
                return
            if version.offer.model.version == self.model.version:
                self.metrics.reloads.labels("unchanged").inc()
                LOGGER.info("reload unchanged", extra={"model": self.model.version})
                return
            replaced = self.model
            self._serve(version)
            self.older_models[replaced.version] = replaced
            grace = self._reload.grace_seconds
            self._ends[replaced.version] = self._loop.call_later(
                grace, self.end_version, replaced.version
            )
            self.metrics.reloads.labels("served").inc()
            LOGGER.info(
                "reloaded",
                extra={
                    "model": self.model.version,
                    "replaced": replaced.version,
                    "grace_seconds": grace,
                },
            )

    def end_version(self, version: str) -> None:
        """Answer a replaced version no more; what waits in the queue is still answered."""
        self._ends.pop(version).cancel()
        del self.older_models[version], self._versions[version]
        self._leave_version(version)
        self.metrics.versions.set(len(self._versions))
        LOGGER.info("version ended", extra={"model": version})

    def identify_client(
        self, scope: Scope, authorization: str | None, rates: RateLimiter | None = None
    ) -> StoredKey:
        """Return the key that a request shows; ProblemError where it has none, or asks too often.

        `rates`: the limit of the address, None: that of queries.
        """
        key = self.keys.authenticate(authorization)
        rates = rates or self.rates
        seconds = rates.take_token(key.client)
        if seconds:
            raise ProblemError(
                ProblemKind.RATE,
                f"At most {rates.rate:g} a second on average.",
                retry_after=seconds,
            )
        scope["fedcel"]["client"] = key.client
        return key

    def identify_reader(self, scope: Scope, authorization: str | None) -> StoredKey:
        """Do the same for an address that is read, which has a limit of its own."""
        path = scope["path"].rstrip("\n")  # the framework's routes take `/v1/model%0A`, too
        return self.identify_client(scope, authorization, self._read_rates[path])

    def find_ending_keys(self) -> KeyExpiry | None:
        """Return which keys end soon; None where their file is damaged, which each request says."""
        try:
            return self.keys.find_ending(time.time())
        except RunError:
            return None

    def warn_of_keys(self) -> None:
        """Log the keys that end within seven days, now and once a day."""
        expiry = self.find_ending_keys()
        if expiry and expiry.soon:
            soon = [{"key": key.id, "client": key.client} for key in expiry.soon]
            LOGGER.warning(
                "keys expire", extra={"keys": soon, "first_in_hours": round(expiry.seconds / 3600)}
            )
        self._key_timer = self._loop.call_later(DAY_SECONDS, self.warn_of_keys)

    async def answer(self, query: Query) -> PrivateAnswer:
        """Return the answer to a query; ProblemError says why there is none."""
        if query.version not in self._versions:  # its grace ended while its body arrived
            raise ProblemError(
                ProblemKind.MODEL_VERSION, f"Model {self.model.version} is served: encode anew."
            )
        try:
            reply = await self._ask_desk(query)
        except FullError:
            self.metrics.refusals.labels("busy").inc()
            raise ProblemError(
                ProblemKind.BUSY, "Ask again with the same id.", retry_after=1.0
            ) from None
        except LedgerError as error:
            raise self._fail(error) from None
        if isinstance(reply, Refusal):
            self.metrics.refusals.labels(reply.reason).inc()
            raise explain_refusal(reply)
        if reply.is_fresh:  # all others wrote nothing
            self._note_written()
        return reply

    async def read_balance(self, client: str) -> Balance:
        """Return a client's account; ProblemError where the ledger cannot be read."""
        try:
            return await self.desk.call(AnswerDesk.read_balance, client)
        except LedgerError as error:
            raise self._fail(error) from None

    async def check_ready(self) -> bool:
        """Whether queries are taken: the ledger was written to of late, or can be now."""
        is_proved = self.is_ready and self._loop.time() - self._wrote_at < PROBE_SECONDS
        if not (is_proved or self.is_ending):
            if self._probe is None or self._probe.done():  # one for all who ask meanwhile
                self._probe = self._loop.create_task(self._probe_ledger())
            await asyncio.shield(self._probe)
        return self.is_ready

    async def _probe_ledger(self) -> None:
        try:
            await self.desk.call(AnswerDesk.probe)
        except LedgerError as error:
            if self.is_ready:  # told once
                self._fail(error)
        else:
            self._note_written()

    def _note_written(self) -> None:
        self.is_ready = not self.is_ending
        self._wrote_at = self._loop.time()

    async def _ask_desk(self, query: Query) -> PrivateAnswer | Refusal:
        """Return the reply to a query; its version stays at the desk until then."""
        self._under_way[query.version] += 1
        try:
            return await self.batcher.submit(query)
        finally:
            self._under_way[query.version] -= 1
            self._leave_version(query.version)

    def _leave_version(self, version: str) -> None:
        """Take a version that ended from the desk, once nobody waits for it."""
        if version not in self._versions and not self._under_way[version]:
            self._begin_task(self._remove_version(version))

    async def _remove_version(self, version: str) -> None:
        async with self._reloading:  # it may come back meanwhile
            if version in self._versions or self._under_way[version]:
                return
            with suppress(LedgerError):  # the desk may have ended
                await self.desk.call(AnswerDesk.remove_version, version)

    def _fail_for_good(self) -> None:
        self.is_ready = False
        self.failure = LedgerError("the process that makes the answers ended by itself")
        LOGGER.error("answering ended", extra={"reason": str(self.failure)})
        self.on_failure()

    def _fail(self, error: LedgerError) -> ProblemError:
        self.is_ready = False
        LOGGER.error("ledger", exc_info=error, extra={"reason": str(error)})
        return ProblemError(
            ProblemKind.LEDGER, "Ask again later with the same id.", retry_after=5.0
        )

    def _begin_reload(self) -> None:
        self._begin_task(self.reload())

    def _begin_task(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)  # the loop itself keeps no task alive
        task.add_done_callback(self._tasks.discard)

    async def _add_version(self, offer: ModelOffer) -> ServedVersion:
        """Have a version answered."""
        card = await asyncio.to_thread(build_model_card, offer)
        await self.desk.call(AnswerDesk.add_version, offer)
        return ServedVersion(offer, card)

    def _serve(self, version: ServedVersion) -> None:
        """Make a version the newest; the one before is the caller's to keep or end."""
        name = version.offer.model.version
        if name in self._ends:  # it had been replaced
            self._ends.pop(name).cancel()
        self.older_models.pop(name, None)
        self._versions[name] = version
        self.offer, self.model, self.model_card = version.offer, version.offer.model, version.card
        self.metrics.versions.set(len(self._versions))

    async def _answer_batch(self, queries: Sequence[Query]) -> list[PrivateAnswer | Refusal]:
        try:
            replies, phases = await self.desk.call(AnswerDesk.answer, queries)
        except AnsweringError as error:
            LOGGER.error("answering failed", extra={"reason": str(error)})
            raise
        for name, seconds in phases:
            self.metrics.observe_phase(name, seconds)
        for version, count in Counter(query.version for query in queries).items():
            self.metrics.version_queries.labels(version).inc(count)
        self.metrics.observe_batch(replies, self.batcher.count_waiting())
        return replies


def do_nothing() -> None:
    """Do nothing."""


def describe_reason(error: Exception) -> str:
    """Return an error's words where they are the project's own, else its type and place."""
    return str(error) if isinstance(error, FedcelError) else describe_place(error)


def create_app(service: Service, telemetry: Telemetry | None = None) -> FastAPI:
    """Return the application; its service starts and ends with it."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await service.start()
        yield
        await service.end()

    app = FastAPI(title="fedcel", version="1", lifespan=lifespan, docs_url=None, redoc_url=None)
    app.state.service = service
    app.add_middleware(QueryRoute, service=service)
    observe = telemetry.observe_request if telemetry else None
    app.add_middleware(RequestMonitor, metrics=service.metrics, observe=observe)
    app.add_exception_handler(ProblemError, handle_problem)
    app.add_exception_handler(HTTPException, handle_http_error)
    app.router.add_api_route(
        QUERY_PATH,
        answer_query,
        name="query",
        methods=["POST"],
        response_model=service_messages.Answer,
        responses=describe_refusals(401, 403, 408, 409, 413, 415, 422, 429, 500, 503),
        openapi_extra=KEY_DOCUMENTATION | QUERY_DOCUMENTATION,
    )
    for path, handler, response_class, statuses in (
        ("/v1/model", describe_model, JSONResponse, (401, 429)),
        ("/v1/encoder", send_encoder, Response, (401, 429)),
        ("/v1/budget", read_budget, JSONResponse, (401, 429, 503)),
        ("/healthz", report_alive, Response, (503,)),
        ("/readyz", report_ready, Response, (503,)),
        ("/metrics", send_metrics, Response, (503,)),
    ):
        app.get(
            path,
            name=path.rpartition("/")[2],
            response_class=response_class,
            responses=describe_refusals(*statuses),
            openapi_extra=KEY_DOCUMENTATION if path.startswith("/v1/") else None,
        )(handler)
    document = app.openapi()
    key_scheme = {"key": {"type": "http", "scheme": "bearer"}}
    document.setdefault("components", {})["securitySchemes"] = key_scheme
    return app


class QueryRoute:
    """Answers queries before the framework sees them: its layers cost more than all the privacy."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self.app = app
        self.service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a query; pass any other request on."""
        if scope["type"] != "http" or (scope["path"], scope["method"]) != (QUERY_PATH, "POST"):
            await self.app(scope, receive, send)
            return
        head = RequestHead.of(scope)
        try:
            key = self.service.identify_client(scope, head.get(b"authorization"))
            query = await parse_query(
                head,
                receive,
                key.client,
                self.service.model,
                older=self.service.older_models,
            )
            scope["fedcel"]["request"] = query.request
            answer = await self.service.answer(query)
        except ProblemError as problem:
            await send_problem(send, problem)
            return
        headers = ANSWER_HEADERS
        if key.expires is not None:
            headers = headers | describe_end(key, time.time())
        await send_reply(send, 200, headers, answer.to_json())


def describe_refusals(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the documentation of refusals."""
    content = {PROBLEM_MEDIA_TYPE: {"schema": service_messages.ProblemBody.model_json_schema()}}
    by_status: dict[int | str, dict[str, Any]] = {}
    for status in statuses:
        titles = [kind.title for kind in ProblemKind if kind.status == status]
        by_status[status] = {"description": " ".join(titles), "content": content}
    return by_status


def find_service(request: Request) -> Service:
    """Return the service behind a request."""
    service: Service = request.app.state.service
    return service


def identify_client(request: Request, response: Response) -> str:
    """Return whose key a request shows; ProblemError where it has none, or asks too often.

    The response tells that the key ends soon.
    """
    authorization = request.headers.get("authorization")
    key = find_service(request).identify_reader(request.scope, authorization)
    response.headers.update(describe_end(key, time.time()))
    return key.client


def build_model_card(offer: ModelOffer) -> service_messages.ModelCard:
    """Return what a device has to know; the encoder is written out and hashed here."""
    served, mechanism = offer.model, offer.mechanism
    price = to_micro_epsilon(mechanism.epsilon) / MICRO
    return service_messages.ModelCard(
        model=served.version,
        shape=list(served.shape),
        features=served.net.features,
        classes=served.classes,
        samples=served.samples,
        sigma=served.net.cut.sigma,
        dropout=served.net.cut.dropout,
        largest=service_messages.MAX_VALUE,
        mechanism=mechanism.name,
        clip=served.privacy.clip,
        clip_kind=served.privacy.clip_kind,
        epsilon=mechanism.epsilon,
        delta=mechanism.delta,
        price=service_messages.PriceCard(answer=price, uncertainty=price),
        encoder=service_messages.EncoderCard(
            url="/v1/encoder", sha256=sha256(served.encoder).hexdigest(), bytes=len(served.encoder)
        ),
        leak=served.leak,
        expected=offer.expected,
    )


# The OpenAPI document describes each route with the docstring of its handler.


async def answer_query(request: Request) -> Response:
    """Answer one message, privately, for its price; the same message again is free."""
    # QueryRoute answers before: what comes here had an address like it, such as `/v1/query%0A`.
    raise ProblemError(ProblemKind.NOT_FOUND, "Ask /v1/query.")


async def describe_model(request: Request, response: Response) -> service_messages.ModelCard:
    """Say what is served and what it costs."""
    service = find_service(request)
    identify_client(request, response)
    return service.model_card


async def send_encoder(request: Request) -> Response:
    """Give the device's half: safetensors, its settings in the metadata."""
    service = find_service(request)
    response = Response(service.model.encoder, media_type=BINARY_TYPE)
    identify_client(request, response)
    return response


async def read_budget(request: Request, response: Response) -> service_messages.Budget:
    """Say what the asking client has left."""
    service = find_service(request)
    client = identify_client(request, response)
    balance = await service.read_balance(client)
    return service_messages.Budget(
        client=client,
        granted=balance.granted / MICRO,
        spent=balance.spent / MICRO,
        left=balance.remaining / MICRO,
        delta=balance.delta,
    )


async def report_alive(request: Request) -> Response:
    """Say that the process lives."""
    return Response("ok\n", media_type="text/plain")


async def report_ready(request: Request) -> Response:
    """Say whether questions are taken: not while draining, not after the ledger failed."""
    if not await find_service(request).check_ready():
        raise ProblemError(ProblemKind.BUSY, "Draining, or the ledger failed.", retry_after=5.0)
    return Response("ready\n", media_type="text/plain")


async def send_metrics(request: Request) -> Response:
    """Give the numbers of the service, for Prometheus."""
    service = find_service(request)
    expiry = service.find_ending_keys()
    service.metrics.key_expiry.set(expiry.seconds if expiry else math.nan)
    service.metrics.keys_expiring.set(len(expiry.soon) if expiry else math.nan)
    text = service.metrics.to_text()
    return Response(text, media_type="text/plain; version=0.0.4")


async def handle_problem(request: Request, error: Exception) -> Response:
    """Return a refusal."""
    assert isinstance(error, ProblemError)
    return error.to_response()


async def handle_http_error(request: Request, error: Exception) -> Response:
    """Return what the framework refuses, in the same form."""
    assert isinstance(error, HTTPException)
    kind = ProblemKind.METHOD if error.status_code == 405 else ProblemKind.NOT_FOUND
    response = ProblemError(kind, "See /openapi.json.").to_response()
    response.headers.update(error.headers or {})
    return response
