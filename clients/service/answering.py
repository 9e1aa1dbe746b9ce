"""One batch of questions: charged together, answered together, settled together.

The answers protect the INPUT of a question against whoever reads the answer. No answer exists
before its charge is durable, and none leaves before it is stored for repeats.
"""

import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from hashlib import sha256
from typing import NamedTuple, final

import torch
from jaxtyping import Float
from torch import Tensor

from clients.service.model import ServedModel, uncertainty_scores, uncertainty_sensitivity
from fedcel.posterior import Prediction
from fedcel.privacy import Mechanism, perturb_rows
from fedcel.privacy.ledger import MICRO, Charge, Ledger, Receipt, Refusal

Observe = Callable[[str, float], None]


class Query(NamedTuple):
    """One question as it arrived, checked."""

    client: str
    request: str
    message: bytes
    """D values, float32, little-endian."""
    uncertainty: bool


class Answered(NamedTuple):
    """An answer that may leave; `body` is what was stored."""

    body: bytes
    fresh: bool
    left: int
    spent: int


class Price(NamedTuple):
    """What an answer costs, in micro-epsilons, rounded up."""

    answer: int
    uncertainty: int

    def of(self, ask: Query) -> int:
        """Return the price of one question."""
        return self.answer + (self.uncertainty if ask.uncertainty else 0)


def to_micro_epsilon(epsilon: float) -> int:
    """Return epsilon in millionths, never less than it is."""
    return math.ceil(Fraction(epsilon) * MICRO)


@final
@dataclass(frozen=True)
class PrivateAnswerer:
    """All that a batch needs: the model, the mechanism and its price, the ledger."""

    served: ServedModel
    mechanism: Mechanism
    ledger: Ledger
    observe: Observe

    @cached_property
    def price(self) -> Price:
        """Return the prices; uncertainty costs an epsilon of its own."""
        return list_prices(self.mechanism)

    def answer(self, asks: Sequence[Query]) -> list[Answered | Refusal]:
        """Return what each question gets; LedgerError where the ledger cannot be written."""
        found: dict[int, Answered | Refusal] = {}
        left = list(enumerate(asks))
        while left:  # equals wait for each other, so that they get the same answer
            now, left = split_repeated(left)
            answers = self._round([ask for _, ask in now])
            found |= {index: got for (index, _), got in zip(now, answers, strict=True)}
        return [found[index] for index in range(len(asks))]

    def _round(self, asks: list[Query]) -> list[Answered | Refusal]:
        """Return what each gets; one that the model cannot answer costs nothing."""
        with time_phase(self.observe, "heads"):
            heads = self._heads(asks)
        sound = heads.log_samples.isfinite().all(2).all(0).tolist()
        charges = {i: self.charge(ask) for i, ask in enumerate(asks) if sound[i]}
        with time_phase(self.observe, "charge"):
            told = dict(zip(charges, self.ledger.charge([*charges.values()]), strict=True))
        paid = [i for i, got in told.items() if isinstance(got, Receipt) and got.answer is None]
        fresh = dict(zip(paid, self._draw(heads, asks, paid), strict=True)) if paid else {}
        if paid:
            with time_phase(self.observe, "settle"):
                self.ledger.settle([(charges[i].request, fresh[i]) for i in paid])
        found: list[Answered | Refusal] = []
        for i, ask in enumerate(asks):
            got = told.get(i, Refusal(ask.request, "undefined", 0))
            if isinstance(got, Refusal):
                found.append(got)
            elif got.answer is not None:
                found.append(Answered(got.answer, False, got.remaining, 0))
            else:
                found.append(Answered(fresh[i], True, got.remaining, charges[i].epsilon))
        return found

    def charge(self, ask: Query) -> Charge:
        """Return what the ledger has to book for a question."""
        # Ids are a client's own: nobody can use up another's.
        name = f"{ask.client}:{ask.request}"
        price = self.price.of(ask)
        return Charge(
            name, ask.client, self.served.version, price, self.mechanism.delta, self.digest(ask)
        )

    def digest(self, ask: Query) -> bytes:
        """Return the digest of a message and of everything that decides its answer."""
        return sha256(self._laws[ask.uncertainty] + b"\0" + ask.message).digest()

    @cached_property
    def _laws(self) -> list[bytes]:
        """Return what decides an answer besides its message, without and with uncertainty."""
        law = repr(self.served.privacy)
        return [json.dumps([law, uncertainty]).encode() for uncertainty in (False, True)]

    def _heads(self, asks: list[Query]) -> Prediction:
        """Return what all heads say to each message."""
        rows = torch.frombuffer(bytearray().join(a.message for a in asks), dtype=torch.float32)
        return self.served.logits(rows.reshape(len(asks), -1))

    def _draw(self, heads: Prediction, asks: list[Query], paid: list[int]) -> list[bytes]:
        """Return fresh answers to the questions that paid."""
        with time_phase(self.observe, "noise"):
            mine = Prediction(heads.log_samples[:, paid])
            values = self.mechanism.answer(mine.logits)
            wanted = [row for row, i in enumerate(paid) if asks[i].uncertainty]
            doubt: dict[int, Tensor] = {}
            if wanted:
                bound = uncertainty_sensitivity(self.served.classes)
                noisy = perturb_rows(
                    uncertainty_scores(mine)[wanted], self.mechanism.epsilon, bound
                )
                doubt = dict(zip(wanted, noisy, strict=True))
        unit = self.mechanism.unit
        return [build_answer_body(row, unit, doubt.get(index)) for index, row in enumerate(values)]


def list_prices(mechanism: Mechanism) -> Price:
    """Return the prices of a mechanism's answers."""
    one = to_micro_epsilon(mechanism.epsilon)
    return Price(one, one)


def split_repeated(
    asks: list[tuple[int, Query]],
) -> tuple[list[tuple[int, Query]], list[tuple[int, Query]]]:
    """Return the first of each request id and of each message of a client, and the others."""
    ids: set[tuple[str, str]] = set()
    messages: set[tuple[str, bytes, bool]] = set()
    first, others = [], []
    for index, ask in asks:
        name = ask.client, ask.request
        message = ask.client, ask.message, ask.uncertainty
        if name in ids or message in messages:
            others.append((index, ask))
            continue
        ids.add(name)
        messages.add(message)
        first.append((index, ask))
    return first, others


def build_answer_body(values: Float[Tensor, " C"], unit: str, doubt: Tensor | None) -> bytes:
    """Return an answer as JSON: what the mechanism gave, and what follows from it."""
    found: dict[str, object] = {
        "unit": unit,
        "label": int(values.argmax()),
        "values": values.tolist(),
    }
    if doubt is not None:
        found |= {"entropy": float(doubt[0]), "information": float(doubt[1])}
    return json.dumps(found).encode()


@contextmanager
def time_phase(observe: Observe, phase: str) -> Iterator[None]:
    """Tell how many seconds a phase took."""
    begun = time.perf_counter()
    yield
    observe(phase, time.perf_counter() - begun)
