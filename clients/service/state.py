"""What a running service holds, from its start to the end of its drain."""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, TypeVar

from clients.service.answering import Answered, PrivateAnswerer, Query
from clients.service.auth import Keys, Known
from clients.service.batching import Batcher, FullError
from clients.service.logs import NAME
from clients.service.metrics import Metrics
from clients.service.model import ServedModel
from clients.service.problems import Kinds, ProblemError
from clients.service.rates import Rates
from fedcel.errors import LedgerError
from fedcel.privacy import Mechanism
from fedcel.privacy.ledger import MICRO, Balance, Ledger, Refusal

Found = TypeVar("Found")

REASONS = {
    "budget": (Kinds.BUDGET, "Ask the operator to top up the client's budget."),
    "delta": (
        Kinds.BUDGET,
        "The deltas of the answers add up to 1 %: use another client or model.",
    ),
    "undefined": (Kinds.INVALID, "The model has no finite answer to this message."),
    "model-budget": (Kinds.MODEL_BUDGET, "This model version answers no more questions."),
    "unknown-client": (Kinds.UNKNOWN_CLIENT, "Ask the operator to grant a budget."),
    "replayed": (Kinds.REPLAYED, "Send a new request id."),
}


class Limits(NamedTuple):
    """How much the service takes at once."""

    queue: int = 256
    """Questions that wait, at most."""
    batch: int = 64
    """Questions answered together, at most."""
    rate: float = 50.0
    """Questions a second of one client, on average."""


class Service:
    """One served model on one ledger; `start` and `end` within one event loop.

    The ledger and the model are used in one thread alone, off the event loop.
    """

    def __init__(
        self, served: ServedModel, mechanism: Mechanism, ledger: Path, keys: Path, limits: Limits
    ) -> None:
        self.served = served
        self.mechanism = mechanism
        self.limits = limits
        self.keys = Keys(keys)
        self.rates = Rates(limits.rate, time.monotonic)
        self.metrics = Metrics()
        self.log = logging.getLogger(NAME)
        self.ready = False
        self.ending = False
        self.fault: LedgerError | None = None
        self._path = ledger
        self._thread = ThreadPoolExecutor(1, "fedcel-answers")

    async def start(self) -> None:
        """Open the ledger and take questions; LedgerError when it cannot be opened."""
        try:
            self.ledger = await self.off_loop(lambda: Ledger.open(self._path))
        except LedgerError as error:
            self.fault = error
            raise
        self.desk = PrivateAnswerer(self.served, self.mechanism, self.ledger, self.metrics.phase)
        self.batcher = Batcher(self._work, self._thread, self.limits.batch, self.limits.queue)
        self.ready = True
        self.log.info("started", extra={"model": self.served.version})

    async def end(self) -> None:
        """Answer what waits, take nothing more, close the ledger."""
        self.ready, self.ending = False, True
        await self.batcher.close()
        await self.off_loop(self.ledger.close)
        self._thread.shutdown()
        self.log.info("drained")

    async def off_loop(self, work: Callable[[], Found]) -> Found:
        """Return what `work` gives, in the service's one thread."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def known(self, header: str | None) -> Known:
        """Return who asks; ProblemError when no valid key is shown or it asks too often."""
        found = self.keys.find(header)
        wait = self.rates.wait(found.client)
        if wait:
            raise ProblemError(
                Kinds.RATE, f"At most {self.limits.rate:g} a second on average.", retry=wait
            )
        return found

    async def ask(self, ask: Query) -> Answered:
        """Return the answer to a question; ProblemError says why there is none."""
        self.metrics.queue.set(self.batcher.waiting())
        try:
            found = await self.batcher.submit(ask)
        except FullError:
            self.metrics.refusals.labels("busy").inc()
            raise ProblemError(Kinds.BUSY, "Ask again with the same id.", retry=1.0) from None
        except LedgerError as error:
            raise self._failed(error) from None
        self.ready = not self.ending
        if isinstance(found, Refusal):
            self.metrics.refusals.labels(found.reason).inc()
            kind, detail = REASONS[found.reason]
            raise ProblemError(kind, detail, left=found.remaining / MICRO)
        self.metrics.answers.labels(str(found.fresh).lower()).inc()
        self.metrics.epsilon.inc(found.spent / MICRO)
        return found

    async def balance(self, client: str) -> Balance:
        """Return a client's account; ProblemError where the ledger cannot be read."""
        try:
            return await self.off_loop(lambda: self.ledger.balance(client))
        except LedgerError as error:
            raise self._failed(error) from None

    async def recovered(self) -> bool:
        """Say whether questions are taken; after a failure of the ledger, try it again."""
        if not (self.ready or self.ending):
            try:
                await self.off_loop(self.ledger.probe)
            except LedgerError:
                return False
            self.ready = True
        return self.ready

    def _failed(self, error: LedgerError) -> ProblemError:
        self.ready = False
        self.log.error("ledger", exc_info=error)
        return ProblemError(Kinds.LEDGER, "Ask again later with the same id.", retry=5.0)

    def _work(self, asks: Sequence[Query]) -> list[Answered | Refusal]:
        self.metrics.batch.observe(len(asks))
        return self.desk.answer(asks)
