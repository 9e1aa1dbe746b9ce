"""Private answers: drawn together, charged and stored at once, then told.

The answers protect the INPUT of a query against the reader of the answer. None leaves before its
charge and the answer itself, for repeats, are durable. HTTP service, Flower node and private layer
answer by `ChargedMechanism.answer` only; it needs no web framework.
"""

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from typing import NamedTuple, final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from clients.service.model import ServedModel, uncertainty_scores, uncertainty_sensitivity
from fedcel.posterior import Prediction
from fedcel.privacy import AnswerCalibration, Mechanism, perturb_rows
from fedcel.privacy.ledger import (
    MICRO,
    Charge,
    Ledger,
    Receipt,
    Refusal,
    to_micro_epsilon,
)

PROBABILITY_DIGITS = 6
MAX_TEXTS = 1024
"""Answers of which the text is kept: where a label is all that is told, there are no others."""
NO_SCORES: Mapping[int, Tensor] = {}

KEPT_KEYS = {"clip": 1.0, "clip-kind": "l1", "delta": 1e-6, "sensitivity": "none"}
"""Keys that every mechanism had when the first digests were kept, with their values then."""


class Query(NamedTuple):
    """A checked query."""

    client: str
    request: str
    """The client's own id of it."""
    message: bytes
    """D values, float32, little-endian."""
    wants_uncertainty: bool
    """Whether it also asks for entropy and BALD, for their price."""
    version: str = ""
    """Model version that it was made for, where several are served."""


class PrivateAnswer(NamedTuple):
    """An answer that may leave."""

    body: bytes
    """JSON: stored for repeats, with the probabilities that follow from it."""
    is_fresh: bool
    """Whether it was drawn, and paid, for this query."""
    remaining: int
    """Micro-epsilons that the client has left."""
    spent: int
    """Micro-epsilons that it cost."""

    def to_json(self) -> bytes:
        """Return the body with `fresh` and `left`, as clients get it."""
        fresh, remaining = str(self.is_fresh).lower(), self.remaining / MICRO
        return self.body[:-1] + f', "fresh": {fresh}, "left": {remaining}}}'.encode()


class AnswerText(NamedTuple):
    """A fresh answer as JSON."""

    body: bytes
    """As the mechanism gave it; stored for repeats."""
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
    """A mechanism of which every answer about a model is paid.

    Attributes:
        mechanism: Perturbs logits.
        ledger: Pays.
        model: Version of the model, as the ledger knows it.
        calibration: Adds probabilities; None: answers have none.
        observe_phase: Is told the seconds of each part: noise, write, charge.
    """

    mechanism: Mechanism
    ledger: Ledger
    model: str
    calibration: AnswerCalibration | None = None
    observe_phase: Callable[[str, float], None] = ignore_phase
    _texts: dict[bytes, AnswerText] = field(default_factory=dict, init=False, repr=False)

    def build_charge(
        self, client: str, request: str, digest: bytes, *, wants_uncertainty: bool = False
    ) -> Charge:
        """Return what the ledger has to book for a query; uncertainty costs an epsilon of its own.

        `digest` identifies all that decides the answer: a client pays once for equal ones.
        """
        return Charge(
            request=f"{client}:{request}",  # nobody can use up another client's ids
            client=client,
            model=self.model,
            epsilon=self._epsilon * (2 if wants_uncertainty else 1),
            delta=self.mechanism.delta,
            message=digest,
        )

    def answer(
        self,
        charges: Sequence[Charge],
        logits: Float[Tensor, "B C"],
        scores: Mapping[int, Float[Tensor, "2"]] = NO_SCORES,
    ) -> list[PrivateAnswer | Refusal]:
        """Perturb logits, charge queries for it, and tell those that paid.

        Equal messages, and equal ids, of a client get the same answer, which is paid once; another
        draw is thrown away, seen by nobody. Rows that are not finite are refused, for nothing.

        Args:
            charges: Price of each query.
            logits: The model's answer to each, (B, C).
            scores: Entropy and BALD, by the place of the queries that ask for them.

        Returns:
            For each query its answer, or why there is none.

        Raises:
            LedgerError: The ledger cannot be written; nothing was answered.
        """
        is_finite = logits.isfinite().all(1)
        if not is_finite.all():
            places = is_finite.nonzero().flatten().tolist()
            replies: list[PrivateAnswer | Refusal] = [Refusal("undefined", None) for _ in charges]
            if places:
                asking = {new: scores[old] for new, old in enumerate(places) if old in scores}
                answers = self.answer([charges[place] for place in places], logits[places], asking)
                for place, answer in zip(places, answers, strict=True):
                    replies[place] = answer
            return replies
        with self.timed("noise"):
            values = self.mechanism.answer(logits)
            uncertainty = self._perturb(scores, logits.shape[1])
        with self.timed("write"):
            texts = self._write(values)
            for place, row in uncertainty.items():
                texts[place] = texts[place].add_uncertainty(row)
        with self.timed("charge"):
            receipts = self.ledger.charge(charges, [text.body for text in texts])
        return [
            self._tell(charge, text, receipt)
            for charge, text, receipt in zip(charges, texts, receipts, strict=True)
        ]

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Observe how long a phase takes."""
        start = time.perf_counter()
        yield
        self.observe_phase(phase, time.perf_counter() - start)

    @cached_property
    def _epsilon(self) -> int:
        return to_micro_epsilon(self.mechanism.epsilon)

    def _perturb(
        self, scores: Mapping[int, Float[Tensor, "2"]], classes: int
    ) -> dict[int, list[float]]:
        """Perturb entropy and BALD at an epsilon of their own."""
        if not scores:
            return {}
        rows = torch.stack([*scores.values()])
        noisy = perturb_rows(rows, self.mechanism.epsilon, uncertainty_sensitivity(classes))
        return dict(zip(scores, noisy.tolist(), strict=True))

    def _tell(
        self, charge: Charge, text: AnswerText, receipt: Receipt | Refusal
    ) -> PrivateAnswer | Refusal:
        """Return what the ledger lets a query have: its own answer, an earlier one, or none."""
        if isinstance(receipt, Refusal):
            return receipt
        if receipt.is_fresh:
            return PrivateAnswer(
                text.reply, is_fresh=True, remaining=receipt.remaining, spent=charge.epsilon
            )
        body = receipt.answer
        if self.calibration is not None:  # follows from what is stored, for nothing
            row = np.asarray(json.loads(body)["values"], np.float64)
            body = add_probabilities(body, row, self.calibration.probabilities(row[None])[0])
        return PrivateAnswer(body, is_fresh=False, remaining=receipt.remaining, spent=0)

    def _write(self, values: Float[Tensor, "B C"]) -> list[AnswerText]:
        """Write fresh answers; of a label alone there are few, which are written once."""
        rows = values.detach().double().numpy()
        keys = [row.tobytes() for row in rows]
        unknown = [place for place, key in enumerate(keys) if key not in self._texts]
        written = dict(zip(unknown, self._write_anew(rows[unknown]), strict=True))
        texts = [written.get(place) or self._texts[key] for place, key in enumerate(keys)]
        if len(self._texts) + len(unknown) <= MAX_TEXTS:
            self._texts.update((keys[place], text) for place, text in written.items())
        return texts

    def _write_anew(self, rows: Float[np.ndarray, "P C"]) -> list[AnswerText]:
        if not len(rows):
            return []
        unit = self.mechanism.unit
        bodies = [
            json.dumps({"unit": unit, "label": top, "values": row}).encode()
            for top, row in zip(rows.argmax(1).tolist(), rows.tolist(), strict=True)
        ]
        if self.calibration is None:
            return [AnswerText(body, body) for body in bodies]
        parts = zip(bodies, rows, self.calibration.probabilities(rows), strict=True)
        return [AnswerText(body, add_probabilities(body, *part)) for body, *part in parts]


def add_probabilities(
    body: bytes, values: Float[np.ndarray, " C"], probabilities: Float[np.ndarray, " C"]
) -> bytes:
    """Return a stored answer with label and probabilities."""
    label = int(probabilities.argmax())
    if label != values.argmax():  # the largest value need not be the most probable class
        body = json.dumps({**json.loads(body), "label": label}).encode()
    numbers = ", ".join(f"{p:.{PROBABILITY_DIGITS}f}" for p in probabilities.tolist())
    return body[:-1] + f', "probabilities": [{numbers}]}}'.encode()


@final
@dataclass(frozen=True)
class PrivateAnswerer:
    """Answers batches of queries with a model; attributes as of `ChargedMechanism`."""

    model: ServedModel
    mechanism: Mechanism
    ledger: Ledger
    observe_phase: Callable[[str, float], None] = ignore_phase
    calibration: AnswerCalibration | None = None

    def answer(self, queries: Sequence[Query]) -> list[PrivateAnswer | Refusal]:
        """Charge and answer queries of any clients, as `ChargedMechanism.answer` does.

        Raises:
            LedgerError: The ledger cannot be written; nothing was answered.
        """
        if not queries:
            return []
        with self._paid.timed("heads"):
            message_bytes = bytearray().join(query.message for query in queries)
            messages = torch.frombuffer(message_bytes, dtype=torch.float32)
            prediction = self.model.predict(messages.reshape(len(queries), -1))
            logits = prediction.logits
            is_finite = np.isfinite(prediction.log_samples.numpy()).all((0, 2))
            if not is_finite.all():
                logits[torch.from_numpy(~is_finite)] = math.nan
        asking = [place for place, query in enumerate(queries) if query.wants_uncertainty]
        scores = NO_SCORES
        if asking:
            rows = uncertainty_scores(Prediction(prediction.log_samples[:, asking]))
            scores = dict(zip(asking, rows, strict=True))
        return self._paid.answer([self.build_charge(query) for query in queries], logits, scores)

    def build_charge(self, query: Query) -> Charge:
        """Return what the ledger has to book for a query."""
        return self._paid.build_charge(
            query.client,
            query.request,
            self.digest(query),
            wants_uncertainty=query.wants_uncertainty,
        )

    def digest(self, query: Query) -> bytes:
        """Return SHA-256 of a query's message and of everything else that decides its answer."""
        return sha256(
            self._answer_contexts[query.wants_uncertainty] + b"\0" + query.message
        ).digest()

    @cached_property
    def _answer_contexts(self) -> list[bytes]:
        """Return what decides an answer besides its message, without and with uncertainty.

        Canonical JSON of values alone: the digests are kept for years, names in the code are not.
        """
        privacy = KEPT_KEYS | self.model.privacy.model_dump(mode="json", by_alias=True)
        return [
            json.dumps(
                {"privacy": privacy, "uncertainty": with_uncertainty},
                sort_keys=True,
                separators=(",", ":"),
            ).encode()
            for with_uncertainty in (False, True)
        ]

    @cached_property
    def _paid(self) -> ChargedMechanism:
        return ChargedMechanism(
            self.mechanism, self.ledger, self.model.version, self.calibration, self.observe_phase
        )
