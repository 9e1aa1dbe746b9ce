"""The ledger and the model versions that it pays for, in one place, and how the service asks it.

One desk does one thing after the other. It may be in a thread of the service (`ThreadDesk`) or in a
process of its own (`clients.service.desk_process`), which has a core and an interpreter of its own.
"""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Concatenate, NamedTuple, ParamSpec, Protocol, TypeVar, final

import torch

from clients.service.answering import PrivateAnswerer, Query
from clients.service.batching import run_in_thread
from clients.service.charged_answers import PrivateAnswer
from clients.service.versions import ModelOffer
from fedcel.privacy.ledger import Balance, Ledger, LedgerAddress, Refusal

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


class AnsweredBatch(NamedTuple):
    """What came of a batch."""

    replies: list[PrivateAnswer | Refusal]
    """Of each query its answer, or why there is none."""
    phases: list[tuple[str, float]]
    """Seconds of each part: heads, noise, write, charge."""


@final
class AnswerDesk:
    """Answers queries for any of its versions; all of them charge one ledger.

    Every method raises LedgerError where the ledger cannot be read or written.
    """

    def __init__(self, ledger: LedgerAddress) -> None:
        self.ledger = Ledger.open(ledger)
        self._answerers: dict[str, PrivateAnswerer] = {}
        self._phases: list[tuple[str, float]] = []

    def add_version(self, offer: ModelOffer) -> None:
        """Answer a version from now on."""
        self._answerers[offer.model.version] = PrivateAnswerer(
            offer.model, offer.mechanism, self.ledger, self._note_phase, offer.calibration
        )

    def remove_version(self, version: str) -> None:
        """Answer a version no more."""
        del self._answerers[version]

    def rehearse(self, version: str) -> None:
        """Make an answer for nobody: some libraries are loaded when they are first used."""
        answerer = self._answerers[version]
        messages = torch.zeros(1, answerer.model.net.features)
        answerer.mechanism.answer(answerer.model.predict(messages).logits)

    def answer(self, queries: Sequence[Query]) -> AnsweredBatch:
        """Answer queries, each by the version that it was made for.

        A batch for one version alone is one transaction of the ledger, as it is without a change.
        """
        self._phases = []
        places: dict[str, list[int]] = {}
        for place, query in enumerate(queries):
            places.setdefault(query.version, []).append(place)
        replies: dict[int, PrivateAnswer | Refusal] = {}
        for version, rows in places.items():
            answers = self._answerers[version].answer([queries[row] for row in rows])
            replies.update(zip(rows, answers, strict=True))
        return AnsweredBatch([replies[place] for place in range(len(queries))], self._phases)

    def read_balance(self, client: str) -> Balance:
        """Return a client's account."""
        return self.ledger.balance(client)

    def probe(self) -> None:
        """Find out whether something could be charged now."""
        self.ledger.probe()

    def close(self) -> None:
        """Close the ledger."""
        self.ledger.close()

    def _note_phase(self, name: str, seconds: float) -> None:
        self._phases.append((name, seconds))


class DeskLink(Protocol):
    """Asks a desk from an event loop; what is asked is done in order."""

    batches_at_once: int
    """How many batches are worth sending before the first one is answered."""

    async def open(self, ledger: LedgerAddress, on_end: Callable[[], None]) -> None:
        """Make the desk; LedgerError where its ledger cannot be opened.

        `on_end` is called once where the desk ends by itself.
        """

    async def call(
        self,
        method: Callable[Concatenate[AnswerDesk, Parameters], Result],
        *arguments: Parameters.args,
        **options: Parameters.kwargs,
    ) -> Result:
        """Return what a method of the desk returns, or raise what it raises."""

    async def close(self) -> None:
        """Do what was asked, then close the ledger and end."""


@final
class ThreadDesk:
    """A desk in a thread of this process; it ends with it."""

    batches_at_once = 1

    desk: AnswerDesk | None = None

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "fedcel-answers")

    async def open(self, ledger: LedgerAddress, on_end: Callable[[], None]) -> None:
        """Make the desk."""
        self.desk = await run_in_thread(self._thread, AnswerDesk, ledger)

    async def call(
        self,
        method: Callable[Concatenate[AnswerDesk, Parameters], Result],
        *arguments: Parameters.args,
        **options: Parameters.kwargs,
    ) -> Result:
        """Return what a method of the desk returns."""
        assert self.desk is not None, "open it first"
        return await run_in_thread(self._thread, method, self.desk, *arguments, **options)

    async def close(self) -> None:
        """Do what was asked, then close the ledger."""
        if self.desk is not None:
            await self.call(AnswerDesk.close)
        await asyncio.to_thread(self._thread.shutdown)
