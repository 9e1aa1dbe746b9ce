"""A service of private answers without its HTTP: model versions, one ledger, readiness, reloads.

Devices that hold an older encoder are answered until the grace ends. All versions charge the same
ledger, so that a client's budget holds across them.
"""

import asyncio
import math
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from clients.service.access import KeyExpiry, KeyStore, RateLimiter, key_table_path
from clients.service.model_offer import ModelOffer, build_model_card
from clients.service.monitoring import LOGGER, Metrics
from clients.service.private_answers import PrivateAnswer, Query, ServedModel
from clients.service.problems import (
    ProblemError,
    ProblemKind,
    describe_place,
    explain_ledger,
    explain_refusal,
)
from clients.service.worker import (
    AnsweringError,
    AnswerWorker,
    Batcher,
    ThreadWorker,
    Worker,
)
from clients.service_messages import (
    QUERY_PATH,
    READ_PATHS,
    ModelCard,
)
from fedcel.errors import FedcelError, LedgerError, RunError, SettingsError
from fedcel.privacy.ledger import MICRO, Balance, LedgerAddress, Refusal

DAY_SECONDS = 86_400.0
QUEUE_SECONDS = 0.1
"""Pause between looks through the queue for a version that ended."""
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


class Reload(NamedTuple):
    """Source of a new model version while the service runs."""

    load: Callable[[], ModelOffer]
    """Reads the run again; raises where it cannot be served."""
    grace_seconds: float
    """Time for which the replaced version is still answered."""


class Service:
    """A model, and those it replaced, on one ledger; `start` and `end` within one event loop.

    Ledger and models are at a worker, off the event loop. `on_failure` is called where that ends by
    itself: nothing can be answered any more, and `failure` says why.
    """

    model_card: ModelCard
    batcher: Batcher[Query, PrivateAnswer | Refusal]
    _loop: asyncio.AbstractEventLoop | None = None
    _key_timer: asyncio.TimerHandle

    def __init__(
        self,
        offer: ModelOffer,
        ledger: LedgerAddress,
        limits: Limits,
        *,
        keys: Path | None = None,
        reload: Reload | None = None,
        worker: Worker | None = None,
    ) -> None:
        self.offer = offer
        """The newest version, which /v1/model and /v1/encoder give."""
        self.versions: dict[str, ModelOffer] = {}
        """All that are answered."""
        self.limits = limits
        self.keys = KeyStore(key_table_path(ledger, keys))
        self.rates = {path: RateLimiter(limits.rate) for path in (QUERY_PATH, *READ_PATHS)}
        self.metrics = Metrics()
        self.is_ready = False
        self.is_ending = False
        self.failure: FedcelError | None = None
        self.on_failure: Callable[[], None] = lambda: None
        self.worker = worker or ThreadWorker()
        self._ledger_address = ledger
        self._reload = reload
        self._reloading = asyncio.Lock()
        self._is_reload_pending = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._ends: dict[str, asyncio.TimerHandle] = {}
        self._probe: asyncio.Task[None] | None = None
        self._wrote_at = -math.inf

    @property
    def model(self) -> ServedModel:
        """Return the newest version's model."""
        return self.offer.model

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """Return the event loop in which the service was started."""
        assert self._loop is not None, "start it first"
        return self._loop

    async def start(self) -> None:
        """Open the ledger and take queries; LedgerError when it cannot be opened."""
        self._loop = asyncio.get_running_loop()
        try:
            async with self._reloading:
                await self.worker.open(self._ledger_address, self._fail_for_good)
                await self._add_version(self.offer)
                if risk := await self.worker.call(AnswerWorker.find_risk):
                    LOGGER.warning("ledger", extra={"reason": risk})
        except Exception as error:
            self.failure = error if isinstance(error, FedcelError) else None
            LOGGER.error("start failed", extra={"reason": describe_reason(error)})
            await self.worker.close()
            raise
        self.batcher = Batcher(
            self._answer_batch,
            max_batch=self.limits.batch,
            max_waiting=self.limits.queue,
            at_once=self.worker.batches_at_once,
        )
        self.is_ready = True
        LOGGER.info("started", extra={"model": self.model.version})
        self.warn_of_keys()
        if self._is_reload_pending:
            self._begin_task(self.reload())

    async def end(self) -> None:
        """Answer what waits, take nothing more, close the ledger."""
        self.is_ready = False
        self.is_ending = True
        for timer in (*self._ends.values(), self._key_timer):
            timer.cancel()
        for task in self._tasks:
            task.cancel()
        await self.batcher.close()
        await self.worker.close()
        LOGGER.info("drained")

    def request_reload(self) -> None:
        """Read the run again soon, or once the service has started.

        A handler of a signal may call it.
        """
        if self.is_ending:
            LOGGER.warning("reload ignored", extra={"reason": "the service is ending"})
        elif self._loop is None:
            self._is_reload_pending = True
        else:
            self._loop.call_soon_threadsafe(lambda: self._begin_task(self.reload()))

    async def reload(self) -> None:
        """Serve what the run holds now, beside what it replaces; what cannot be served is logged.

        The old version is answered until its grace ends.
        """
        if self._reload is None:
            return
        async with self._reloading:
            replaced = self.model.version
            try:
                offer = await asyncio.to_thread(self._reload.load)
                if (served := self.versions.get(offer.model.version)) is not None:
                    check_same_price(served, offer)
                if self.is_ending:
                    return
                if offer.model.version == replaced:
                    self.metrics.reloads.labels("unchanged").inc()
                    LOGGER.info("reload unchanged", extra={"model": replaced})
                    return
                await self._add_version(served or offer)
            except Exception as error:  # the old model answers on, whatever is wrong with the new
                self.metrics.reloads.labels("refused").inc()
                reason = {"model": replaced, "reason": describe_reason(error)}
                LOGGER.error("reload refused", extra=reason)
                return
            grace = self._reload.grace_seconds
            self._ends[replaced] = self.loop.call_later(grace, self.end_version, replaced)
            self.metrics.reloads.labels("served").inc()
            words = {"model": self.model.version, "replaced": replaced, "grace_seconds": grace}
            LOGGER.info("reloaded", extra=words)

    def end_version(self, version: str) -> None:
        """Answer a replaced version no more; what waits in the queue is still answered."""
        self._ends.pop(version).cancel()
        del self.versions[version]
        self._begin_task(self._remove_version(version))
        self.metrics.versions.set(len(self.versions))
        LOGGER.info("version ended", extra={"model": version})

    def find_ending_keys(self) -> KeyExpiry | None:
        """Return the keys that end soon; None where their file is damaged."""
        with suppress(RunError):  # each request says it
            return self.keys.find_ending(time.time())
        return None

    def warn_of_keys(self) -> None:
        """Log the keys that end within seven days, now and once a day."""
        expiry = self.find_ending_keys()
        if expiry and expiry.soon:
            soon = [{"key": key.id, "client": key.client} for key in expiry.soon]
            LOGGER.warning(
                "keys expire", extra={"keys": soon, "first_in_hours": round(expiry.seconds / 3600)}
            )
        self._key_timer = self.loop.call_later(DAY_SECONDS, self.warn_of_keys)

    def find_model(self, version: str) -> ServedModel:
        """Return the model that a query is for; ProblemError where it is not answered."""
        if version not in self.versions:
            raise ProblemError(
                ProblemKind.MODEL_VERSION,
                f"Model {self.model.version} is served: fetch /v1/model and /v1/encoder, encode "
                "anew.",
            )
        return self.versions[version].model

    async def answer(self, query: Query) -> PrivateAnswer:
        """Return the answer to a query; ProblemError says why there is none."""
        self.find_model(query.version)  # its grace may have ended while the body arrived
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
            return await self.worker.call(AnswerWorker.read_balance, client)
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
            await self.worker.call(AnswerWorker.probe)
        except LedgerError as error:
            if self.is_ready:  # told once
                self._fail(error)
        else:
            self._wrote_at = self.loop.time()
            self.is_ready = not self.is_ending

    async def _remove_version(self, version: str) -> None:
        """Take a version that ended from the worker, once no query in the queue is for it."""
        async with self._reloading:  # it may come back meanwhile
            while any(query.version == version for query, _ in self.batcher.waiting):
                await asyncio.sleep(QUEUE_SECONDS)
            await asyncio.sleep(0)  # a batch that has just begun goes first
            if version not in self.versions:
                with suppress(LedgerError):  # the worker may have ended
                    await self.worker.call(AnswerWorker.remove_version, version)

    def _fail_for_good(self) -> None:
        self.is_ready = False
        self.failure = LedgerError("the process that makes the answers ended by itself")
        LOGGER.error("answering ended", extra={"reason": str(self.failure)})
        self.on_failure()

    def _fail(self, error: LedgerError) -> ProblemError:
        self.is_ready = False
        LOGGER.error("ledger", exc_info=error, extra={"reason": str(error)})
        return explain_ledger()

    def _begin_task(self, work: Coroutine[Any, Any, None]) -> None:
        task = self.loop.create_task(work)
        self._tasks.add(task)  # the loop itself keeps no task alive
        task.add_done_callback(self._tasks.discard)

    async def _add_version(self, offer: ModelOffer) -> None:
        """Make a version the newest; the caller ends the one before."""
        version = offer.model.version
        card = await asyncio.to_thread(build_model_card, offer)
        if version not in self.versions:
            await self.worker.call(AnswerWorker.add_version, offer)
        if version in self._ends:  # it had been replaced
            self._ends.pop(version).cancel()
        self.versions[version] = self.offer = offer
        self.model_card = card
        self.metrics.versions.set(len(self.versions))

    async def _answer_batch(self, queries: Sequence[Query]) -> list[PrivateAnswer | Refusal]:
        try:
            replies, phases = await self.worker.call(AnswerWorker.answer, queries)
        except AnsweringError as error:
            LOGGER.error("answering failed", extra={"reason": str(error)})
            raise
        metrics = self.metrics
        for name, seconds in phases:
            metrics.phases.labels(name).observe(seconds)
        metrics.queue.set(len(self.batcher.waiting))
        metrics.batch.observe(len(replies))
        answers = [reply for reply in replies if isinstance(reply, PrivateAnswer)]
        fresh = sum(answer.is_fresh for answer in answers)
        metrics.answers.labels("true").inc(fresh)
        metrics.answers.labels("false").inc(len(answers) - fresh)
        metrics.epsilon.inc(sum(answer.spent for answer in answers) / MICRO)
        for version, count in Counter(query.version for query in queries).items():
            metrics.version_queries.labels(version).inc(count)
        return replies


def describe_reason(error: Exception) -> str:
    """Return an error's words where they are the project's own, else its type and place."""
    return str(error) if isinstance(error, FedcelError) else describe_place(error)


def check_same_price(served: ModelOffer, new: ModelOffer) -> None:
    """Refuse the same tensors at another price, which devices could not see: SettingsError."""
    if served.model.privacy != new.model.privacy:
        raise SettingsError(
            f"the settings of the group privacy changed, but the model is still "
            f"{new.model.version}: devices that know its price would pay another; restart the "
            "service to change it"
        )
