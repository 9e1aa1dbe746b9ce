"""The one way to a private answer: charge, then draw, then store.

No answer exists before its charge is durable, and none leaves before it is stored for repeats.
Needs neither a web framework nor a model.
"""

import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from typing import NamedTuple, final

import numpy as np
from jaxtyping import Float
from torch import Tensor

from fedcel.privacy import AnswerCalibration, Mechanism
from fedcel.privacy.ledger import MICRO, Charge, Ledger, Refusal

PROBABILITY_DIGITS = 6
MAX_TEXTS = 1024
"""Answers of which the text is kept: where a label is all that is told, there are no others."""


class PrivateAnswer(NamedTuple):
    """An answer that may leave."""

    body: bytes
    """JSON: what is stored for repeats, and the probabilities that follow from it."""
    is_fresh: bool
    """Whether it was drawn, and paid, for this query."""
    remaining: int
    """Micro-epsilons that the client has left."""
    spent: int
    """Micro-epsilons that it cost."""

    def to_json(self) -> bytes:
        """Return the body with `fresh` and `left`, as clients get it."""
        end = (
            f', "fresh": {"true" if self.is_fresh else "false"}, "left": {self.remaining / MICRO}}}'
        )
        return self.body[:-1] + end.encode()


class AnswerText(NamedTuple):
    """A fresh answer as JSON."""

    body: bytes
    """What is stored for repeats: what the mechanism gave."""
    reply: bytes
    """With label and probabilities, which follow from it."""

    def add_uncertainty(self, scores: Sequence[float]) -> "AnswerText":
        """Return the text with entropy and BALD."""
        entropy, information = scores
        end = f', "entropy": {entropy!r}, "information": {information!r}}}'.encode()
        return AnswerText(self.body[:-1] + end, self.reply[:-1] + end)


class DrawnAnswers(NamedTuple):
    """Fresh answers to some queries, in their order."""

    values: Float[Tensor, "P C"]
    """What the mechanism gave."""
    uncertainty: dict[int, Float[Tensor, "2"]]
    """Perturbed entropy and BALD, by the place of those that asked for it."""


def to_micro_epsilon(epsilon: float) -> int:
    """Convert epsilon to what the ledger counts.

    Args:
        epsilon: Privacy loss, in nats.

    Returns:
        Millionths of it, rounded up.
    """
    return math.ceil(Fraction(epsilon) * MICRO)


def ignore_phase(name: str, seconds: float) -> None:
    """Note nothing."""


@final
@dataclass(frozen=True)
class ChargedMechanism:
    """A mechanism of which every answer is paid.

    `observe_phase` is told the seconds of each part: charge, noise, write, settle. Without a
    `calibration` answers have no probabilities.
    """

    mechanism: Mechanism
    ledger: Ledger
    calibration: AnswerCalibration | None = None
    observe_phase: Callable[[str, float], None] = field(default=ignore_phase)
    _texts: dict[bytes, AnswerText] = field(default_factory=dict, init=False, repr=False)

    def answer(
        self, charges: Sequence[Charge], draw: Callable[[list[int]], DrawnAnswers]
    ) -> list[PrivateAnswer | Refusal]:
        """Charge queries, and answer those that paid.

        Equal messages, and equal ids, of a client get the same answer, which is paid once.

        Args:
            charges: What each query costs.
            draw: Draws fresh answers to the queries at these places, which have paid.

        Returns:
            For each query its answer, or why there is none.

        Raises:
            LedgerError: The ledger cannot be written; nothing was answered.
        """
        replies: dict[int, PrivateAnswer | Refusal] = {}
        waiting = [*range(len(charges))]
        while waiting:  # equals wait for each other, so that they get the same answer
            places, waiting = split_repeated(charges, waiting)
            self._answer_distinct(charges, places, draw, replies)
        return [replies[place] for place in range(len(charges))]

    def _answer_distinct(
        self,
        charges: Sequence[Charge],
        places: list[int],
        draw: Callable[[list[int]], DrawnAnswers],
        replies: dict[int, PrivateAnswer | Refusal],
    ) -> None:
        """Add the replies of queries that all differ."""
        with self.timed("charge"):
            booked = self.ledger.charge([charges[place] for place in places])
        stored: dict[int, PrivateAnswer] = {}
        paid: list[int] = []
        remaining: list[int] = []
        for place, reply in zip(places, booked, strict=True):
            if isinstance(reply, Refusal):
                replies[place] = reply
            elif reply.answer is not None:
                stored[place] = PrivateAnswer(
                    reply.answer, is_fresh=False, remaining=reply.remaining, spent=0
                )
            else:
                paid.append(place)
                remaining.append(reply.remaining)
        if paid:
            with self.timed("noise"):
                fresh = draw(paid)
            with self.timed("write"):
                texts = self._write(fresh.values, fresh.uncertainty)
            with self.timed("settle"):
                requests = [charges[place].request for place in paid]
                self.ledger.settle([*zip(requests, (text.body for text in texts), strict=True)])
            for place, text, balance in zip(paid, texts, remaining, strict=True):
                replies[place] = PrivateAnswer(
                    text.reply, is_fresh=True, remaining=balance, spent=charges[place].epsilon
                )
        for place, answer in stored.items():
            replies[place] = answer._replace(body=self._tell(answer.body))

    def _write(
        self, values: Float[Tensor, "P C"], uncertainty: dict[int, Float[Tensor, "2"]]
    ) -> list[AnswerText]:
        """Write fresh answers; of a label alone there are few, which are written once."""
        rows = values.detach().double().numpy()
        keys = [row.tobytes() for row in rows]
        unknown = [place for place, key in enumerate(keys) if key not in self._texts]
        written = dict(zip(unknown, self._write_anew(rows[unknown]), strict=True))
        texts = [written.get(place) or self._texts[key] for place, key in enumerate(keys)]
        if len(self._texts) + len(unknown) <= MAX_TEXTS:
            self._texts.update((keys[place], text) for place, text in written.items())
        for place, scores in uncertainty.items():
            texts[place] = texts[place].add_uncertainty(scores.tolist())
        return texts

    def _write_anew(self, rows: Float[np.ndarray, "P C"]) -> list[AnswerText]:
        """Write what the mechanism gave as JSON, and what follows from it for free."""
        if not len(rows):
            return []
        tops = rows.argmax(1).tolist()
        unit = self.mechanism.unit
        bodies = [
            json.dumps({"unit": unit, "label": top, "values": row}).encode()
            for top, row in zip(tops, rows.tolist(), strict=True)
        ]
        if self.calibration is None:
            return [AnswerText(body, body) for body in bodies]
        probabilities = self.calibration.probabilities(rows)
        labels = probabilities.argmax(1).tolist()
        parts = zip(bodies, tops, labels, probabilities.tolist(), strict=True)
        return [AnswerText(body, add_probabilities(body, *part)) for body, *part in parts]

    def _tell(self, body: bytes) -> bytes:
        """Return a stored answer with what follows from it: post-processing, which is free."""
        if self.calibration is None:
            return body
        fields = json.loads(body)
        row = np.asarray(fields["values"], np.float64)
        probabilities = self.calibration.probabilities(row[None])[0]
        parts = int(row.argmax()), int(probabilities.argmax()), probabilities.tolist()
        return add_probabilities(body, *parts)

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Observe how long a phase takes."""
        start = time.perf_counter()
        yield
        self.observe_phase(phase, time.perf_counter() - start)


def split_repeated(charges: Sequence[Charge], places: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return the first of each request id and of each message of a client, and the repeats."""
    earlier: set[object] = set()
    first: list[int] = []
    repeats: list[int] = []
    for place in places:
        charge = charges[place]
        message = charge.client, charge.model, charge.message
        if charge.request in earlier or message in earlier:
            repeats.append(place)
            continue
        earlier.add(charge.request)
        earlier.add(message)
        first.append(place)
    return first, repeats


def add_probabilities(body: bytes, top: int, label: int, probabilities: list[float]) -> bytes:
    """Return a stored answer, whose largest value is at `top`, with label and probabilities."""
    if top != label:  # the largest value need not be the most probable class
        body = json.dumps({**json.loads(body), "label": label}).encode()
    numbers = ", ".join(f"{p:.{PROBABILITY_DIGITS}f}" for p in probabilities)
    return body[:-1] + f', "probabilities": [{numbers}]}}'.encode()
