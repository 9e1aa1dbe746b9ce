"""The one way to a private answer: draw it, charge and store it at once, then tell it.

No answer leaves before its charge and the answer itself, for repeats, are durable.
Needs neither a web framework nor a model.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple, final

import numpy as np
from jaxtyping import Float
from torch import Tensor

from fedcel.privacy import AnswerCalibration, Mechanism
from fedcel.privacy.ledger import MICRO, Charge, Ledger, Receipt, Refusal

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


def ignore_phase(name: str, seconds: float) -> None:
    """Note nothing."""


@final
@dataclass(frozen=True)
class ChargedMechanism:
    """A mechanism of which every answer is paid.

    `observe_phase` is told the seconds of each part: noise, write, charge. Without a `calibration`
    answers have no probabilities.
    """

    mechanism: Mechanism
    ledger: Ledger
    calibration: AnswerCalibration | None = None
    observe_phase: Callable[[str, float], None] = field(default=ignore_phase)
    _texts: dict[bytes, AnswerText] = field(default_factory=dict, init=False, repr=False)

    def answer(
        self,
        charges: Sequence[Charge],
        logits: Float[Tensor, "B C"],
        draw_uncertainty: Callable[[], Mapping[int, Float[Tensor, "2"]]] = dict,
    ) -> list[PrivateAnswer | Refusal]:
        """Perturb logits, charge queries for it, and tell those that paid.

        Equal messages, and equal ids, of a client get the same answer, which is paid once. What was
        drawn for anybody else is thrown away, seen by nobody.

        Args:
            charges: What each query costs.
            logits: What the model says to each, (B, C).
            draw_uncertainty: Returns perturbed entropy and BALD, by the place of the queries that
                ask for it.

        Returns:
            For each query its answer, or why there is none.

        Raises:
            LedgerError: The ledger cannot be written; nothing was answered.
        """
        with self.timed("noise"):
            values = self.mechanism.answer(logits)
            uncertainty = draw_uncertainty()
        with self.timed("write"):
            texts = self._write(values, uncertainty)
        with self.timed("charge"):
            booked = self.ledger.charge(charges, [text.body for text in texts])
        return [
            self._tell(charge, text, reply)
            for charge, text, reply in zip(charges, texts, booked, strict=True)
        ]

    def _tell(
        self, charge: Charge, text: AnswerText, reply: Receipt | Refusal
    ) -> PrivateAnswer | Refusal:
        """Return what the ledger lets a query have: its own answer, an earlier one, or none."""
        if isinstance(reply, Refusal):
            return reply
        if reply.is_fresh:
            return PrivateAnswer(
                text.reply, is_fresh=True, remaining=reply.remaining, spent=charge.epsilon
            )
        body = self._read_again(reply.answer)
        return PrivateAnswer(body, is_fresh=False, remaining=reply.remaining, spent=0)

    def _write(
        self, values: Float[Tensor, "B C"], uncertainty: Mapping[int, Float[Tensor, "2"]]
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

    def _read_again(self, body: bytes) -> bytes:
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


def add_probabilities(body: bytes, top: int, label: int, probabilities: list[float]) -> bytes:
    """Return a stored answer, whose largest value is at `top`, with label and probabilities."""
    if top != label:  # the largest value need not be the most probable class
        body = json.dumps({**json.loads(body), "label": label}).encode()
    numbers = ", ".join(f"{p:.{PROBABILITY_DIGITS}f}" for p in probabilities)
    return body[:-1] + f', "probabilities": [{numbers}]}}'.encode()
