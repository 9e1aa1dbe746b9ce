"""A service of private answers without its HTTP: one model, one ledger, readiness."""

import asyncio
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from clients.service.access import KeyStore, RateLimiter, key_table_path
from clients.service.model_offer import ModelOffer, build_model_card
from clients.service.monitoring import LOGGER, Metrics
from clients.service.private_answers import PrivateAnswer, Query, ServedModel
from clients.service.problems import (
    ProblemError,
    ProblemKind,
    describe_place,
    explain_refusal,
)
from clients.service.worker import AnsweringError, AnswerWorker, Batcher, ProcessWorker
from clients.service_messages import QUERY_PATH, READ_PATHS, ModelCard
from fedcel.errors import FedcelError, LedgerError
from fedcel.privacy.ledger import MICRO, Balance, Ledger, LedgerAddress, Refusal

PROBE_SECONDS = 2.5
"""Time for which a write to the ledger shows that it can be written."""
PROBE_LIMIT_SECONDS = 2.0
"""In which a ledger that can be written is; one that waits longer is out of reach."""


class Limits(NamedTuple):
    """Load that the service takes at once."""

    queue: int = 256
    """Queries that wait, at most."""
    batch: int = 128
    """Queries answered together, at most."""
    rate: float = 50.0
    """Requests a second of one client to each address of /v1, on average."""


class Service:
    """A model on a ledger; `start` and `end` within one event loop.

    Ledger and model are at a worker, off the event loop. `on_failure` is called where that ends by
    itself: nothing can be answered any more, and `failure` says why.
    """

    model_card: ModelCard
    batcher: Batcher[Query, PrivateAnswer | Refusal]
    loop: asyncio.AbstractEventLoop
    """Where it was started."""

    def __init__(
        self,
        offer: ModelOffer,
        ledger: LedgerAddress,
        limits: Limits,
        *,
        keys: Path | None = None,
        worker: ProcessWorker,
    ) -> None:
        self.offer = offer
        self.limits = limits
        self.keys = KeyStore(key_table_path(ledger, keys))
        self.rates = {path: RateLimiter(limits.rate) for path in (QUERY_PATH, *READ_PATHS)}
        self.metrics = Metrics()
        self.is_ready = False
        self.is_ending = False
        self.failure: FedcelError | None = None
        self.on_failure: Callable[[], None] = lambda: None
        self.worker = worker
        self._ledger_address = ledger
        self._probe: asyncio.Task[None] | None = None
        self._wrote_at = -math.inf

    @property
    def model(self) -> ServedModel:
        """Return the model that is served."""
        return self.offer.model

    async def start(self) -> None:
        """Open the ledger and take queries; LedgerError when it cannot be opened."""
        self.loop = asyncio.get_running_loop()
        try:
            await self.worker.open(self._ledger_address, self.offer, self._fail_for_good)
            self.model_card = await asyncio.to_thread(build_model_card, self.offer)
            if risk := await self.worker.call(AnswerWorker.ask_ledger, Ledger.find_risk):
                LOGGER.warning("ledger", extra={"reason": risk})
        except Exception as error:
            self.failure = error if isinstance(error, FedcelError) else None
            reason = str(self.failure or describe_place(error))
            LOGGER.error("start failed", extra={"reason": reason})
            await self.worker.close()
            raise
        self.batcher = Batcher(
            self._answer_batch,
            max_batch=self.limits.batch,
            max_waiting=self.limits.queue,
            at_once=2,  # one is answered while the next is read
        )
        self.is_ready = True
        LOGGER.info("started", extra={"model": self.model.version})

    async def end(self) -> None:
        """Answer what waits, take nothing more, close the ledger."""
        self.is_ready = False
        self.is_ending = True
        await self.batcher.close()
        await self.worker.close()
        LOGGER.info("drained")

    def check_version(self, version: str) -> None:
        """Refuse a query for another model version: ProblemError."""
        if version != self.model.version:
            raise ProblemError(
                ProblemKind.MODEL_VERSION,
                f"Model {self.model.version} is served: fetch /v1/model and /v1/encoder, encode "
                "anew.",
            )

    async def answer(self, query: Query) -> PrivateAnswer:
        """Return the answer to a query; ProblemError says why there is none."""
        try:
            reply = await self.batcher.submit(query)
        except ProblemError:
            self.metrics.refusals.labels("busy").inc()
            raise
        except LedgerError as error:
            raise self._fail(error) from None
        if isinstance(reply, Refusal):
            self.metrics.refusals.labels(reply.reason).inc()
            raise explain_refusal(reply)
        if reply.is_fresh:  # all others wrote nothing
            self._wrote_at = self.loop.time()
            self.is_ready = not self.is_ending
        return reply

    async def read_balance(self, client: str) -> Balance:
        """Return a client's account; ProblemError where the ledger cannot be read."""
        try:
            return await self.worker.call(AnswerWorker.ask_ledger, Ledger.balance, client)
        except LedgerError as error:
            raise self._fail(error) from None

    async def check_ready(self) -> bool:
        """Whether queries are taken: the ledger was written to of late, or can be now."""
        is_proved = self.is_ready and self.loop.time() - self._wrote_at < PROBE_SECONDS
        if not (is_proved or self.is_ending):
            if self._probe is None or self._probe.done():  # one for all who ask meanwhile
                self._probe = self.loop.create_task(self._probe_ledger())
            await asyncio.wait([self._probe], timeout=PROBE_LIMIT_SECONDS)
            return self.is_ready and self._probe.done()
        return self.is_ready

    async def _probe_ledger(self) -> None:
        try:
            await self.worker.call(AnswerWorker.ask_ledger, Ledger.probe)
        except LedgerError as error:
            if self.is_ready:  # told once
                self._fail(error)
        else:
            self._wrote_at = self.loop.time()
            self.is_ready = not self.is_ending

    def _fail_for_good(self) -> None:
        self.is_ready = False
        self.failure = LedgerError("the process that makes the answers ended by itself")
        LOGGER.error("answering ended", extra={"reason": str(self.failure)})
        self.on_failure()

    def _fail(self, error: LedgerError) -> ProblemError:
        self.is_ready = False
        LOGGER.error("ledger", exc_info=error, extra={"reason": str(error)})
        advice = "Ask again later with the same id."
        return ProblemError(ProblemKind.LEDGER, advice, retry_after=5.0)

    async def _answer_batch(self, queries: Sequence[Query]) -> list[PrivateAnswer | Refusal]:
        try:
            replies, phases = await self.worker.call(AnswerWorker.answer, queries)
        except AnsweringError as error:
            LOGGER.error("answering failed", extra={"reason": str(error)})
            raise
        metrics = self.metrics
        for name, seconds in phases.items():
            metrics.phases.labels(name).observe(seconds)
        metrics.queue.set(len(self.batcher.waiting))
        metrics.batch.observe(len(replies))
        answers = [reply for reply in replies if isinstance(reply, PrivateAnswer)]
        fresh = sum(answer.is_fresh for answer in answers)
        metrics.answers.labels("true").inc(fresh)
        metrics.answers.labels("false").inc(len(answers) - fresh)
        metrics.epsilon.inc(sum(answer.spent for answer in answers) / MICRO)
        return replies
