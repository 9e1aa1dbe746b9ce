"""Queries that wait are answered together: charged, then perturbed, then stored.

The answers protect the INPUT of a query against whoever reads the answer. No answer exists before
its charge is durable, and none leaves before it is stored for repeats.

Nothing in here needs the web framework: a Flower node answers with it, too.
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
from fedcel.privacy import AnswerCalibration, Mechanism, perturb_rows
from fedcel.privacy.ledger import MICRO, Charge, Ledger, Refusal

PROBABILITY_DIGITS = 6


class Query(NamedTuple):
    """One query as it arrived, checked."""

    client: str
    request: str
    """The client's own id of it."""
    message: bytes
    """D values, float32, little-endian."""
    wants_uncertainty: bool
    """Whether it also asks for entropy and BALD, for their price."""


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


def to_micro_epsilon(epsilon: float) -> int:
    """Convert epsilon to what the ledger counts.

    Args:
        epsilon: Privacy loss, in nats.

    Returns:
        Millionths of it, rounded up.
    """
    return math.ceil(Fraction(epsilon) * MICRO)


@final
@dataclass(frozen=True)
class PrivateAnswerer:
    """Answers batches of queries with a model, a mechanism and the ledger that pays.

    `observe_phase` is told the seconds of each part: heads, charge, noise, settle, calibrate.
    Without a `calibration` answers have no probabilities.
    """

    model: ServedModel
    mechanism: Mechanism
    ledger: Ledger
    observe_phase: Callable[[str, float], None]
    calibration: AnswerCalibration | None = None

    def answer(self, queries: Sequence[Query]) -> list[PrivateAnswer | Refusal]:
        """Charge and answer queries.

        Equal messages, and equal ids, of a client get the same answer, which is paid once.

        Args:
            queries: The queries, of any clients.

        Returns:
            For each query its answer, or why there is none.

        Raises:
            LedgerError: The ledger cannot be written; nothing was answered.
        """
        replies: dict[int, PrivateAnswer | Refusal] = {}
        waiting = list(enumerate(queries))
        while waiting:  # equals wait for each other, so that they get the same answer
            batch, waiting = split_repeated(waiting)
            answers = self._answer_distinct([query for _, query in batch])
            replies |= {index: reply for (index, _), reply in zip(batch, answers, strict=True)}
        return [replies[index] for index in range(len(queries))]

    def build_charge(self, query: Query) -> Charge:
        """Say what the ledger has to book for a query.

        Args:
            query: The query.

        Returns:
            Its charge; uncertainty costs an epsilon of its own.
        """
        return Charge(
            request=f"{query.client}:{query.request}",  # nobody can use up another client's ids
            client=query.client,
            model=self.model.version,
            epsilon=self._epsilon * (2 if query.wants_uncertainty else 1),
            delta=self.mechanism.delta,
            message=self.digest(query),
        )

    def digest(self, query: Query) -> bytes:
        """Identify a query: the ledger pays once for queries of a client with the same digest.

        Args:
            query: The query.

        Returns:
            SHA-256 of the message and of everything that decides its answer.
        """
        return sha256(
            self._answer_contexts[query.wants_uncertainty] + b"\0" + query.message
        ).digest()

    @cached_property
    def _epsilon(self) -> int:
        return to_micro_epsilon(self.mechanism.epsilon)

    @cached_property
    def _answer_contexts(self) -> list[bytes]:
        """Return what decides an answer besides its message, without and with uncertainty.

        Canonical JSON of values alone: the digests are kept for years, names in the code are not.
        """
        privacy = self.model.privacy.model_dump(mode="json", by_alias=True)
        return [
            json.dumps(
                {"privacy": privacy, "uncertainty": with_uncertainty},
                sort_keys=True,
                separators=(",", ":"),
            ).encode()
            for with_uncertainty in (False, True)
        ]

    def _answer_distinct(self, queries: list[Query]) -> list[PrivateAnswer | Refusal]:
        """Return what each query gets; one that the model cannot answer costs nothing."""
        with self._timed("heads"):
            rows = torch.frombuffer(
                bytearray().join(query.message for query in queries), dtype=torch.float32
            )
            prediction = self.model.predict(rows.reshape(len(queries), -1))
        is_finite = prediction.log_samples.isfinite().all(2).all(0)
        answerable: list[int] = is_finite.nonzero().flatten().tolist()
        charges = [self.build_charge(queries[index]) for index in answerable]
        with self._timed("charge"):
            booked = self.ledger.charge(charges)
        replies: list[PrivateAnswer | Refusal] = [Refusal("undefined", None) for _ in queries]
        stored: dict[int, PrivateAnswer] = {}
        paid: list[tuple[int, Charge, int]] = []
        for index, charge, reply in zip(answerable, charges, booked, strict=True):
            if isinstance(reply, Refusal):
                replies[index] = reply
            elif reply.answer is not None:
                stored[index] = PrivateAnswer(
                    reply.answer, is_fresh=False, remaining=reply.remaining, spent=0
                )
            else:
                paid.append((index, charge, reply.remaining))
        if paid:
            with self._timed("noise"):
                bodies = self._draw_answers(prediction, queries, [index for index, _, _ in paid])
            with self._timed("settle"):
                requests = [charge.request for _, charge, _ in paid]
                self.ledger.settle([*zip(requests, bodies, strict=True)])
            for (index, charge, remaining), body in zip(paid, bodies, strict=True):
                stored[index] = PrivateAnswer(
                    body, is_fresh=True, remaining=remaining, spent=charge.epsilon
                )
        with self._timed("calibrate"):
            bodies = self._add_probabilities([answer.body for answer in stored.values()])
        for (index, answer), body in zip(stored.items(), bodies, strict=True):
            replies[index] = answer._replace(body=body)
        return replies

    def _add_probabilities(self, bodies: list[bytes]) -> list[bytes]:
        """Return stored answers with what follows from each: post-processing, which is free."""
        if self.calibration is None or not bodies:
            return bodies
        parsed = [json.loads(body) for body in bodies]
        values = torch.tensor([fields["values"] for fields in parsed], dtype=torch.float64)
        probabilities = self.calibration.probabilities(values)
        labels = probabilities.argmax(1).tolist()
        parts = zip(bodies, parsed, labels, probabilities.tolist(), strict=True)
        return [add_probabilities(*part) for part in parts]

    def _draw_answers(
        self, prediction: Prediction, queries: Sequence[Query], paid: list[int]
    ) -> list[bytes]:
        """Return fresh answers to the queries that paid."""
        paid_prediction = Prediction(prediction.log_samples[:, paid])
        values = self.mechanism.answer(paid_prediction.logits)
        asking = [row for row, index in enumerate(paid) if queries[index].wants_uncertainty]
        uncertainty: dict[int, Tensor] = {}
        if asking:
            noisy = perturb_rows(
                uncertainty_scores(paid_prediction)[asking],
                self.mechanism.epsilon,
                uncertainty_sensitivity(self.model.classes),
            )
            uncertainty = dict(zip(asking, noisy, strict=True))
        unit = self.mechanism.unit
        return [build_answer_body(row, unit, uncertainty.get(i)) for i, row in enumerate(values)]

    @contextmanager
    def _timed(self, phase: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.observe_phase(phase, time.perf_counter() - start)


def split_repeated(
    queries: list[tuple[int, Query]],
) -> tuple[list[tuple[int, Query]], list[tuple[int, Query]]]:
    """Return the first of each request id and of each message of a client, and the repeats."""
    ids: set[tuple[str, str]] = set()
    messages: set[tuple[str, bytes, bool]] = set()
    first: list[tuple[int, Query]] = []
    repeats: list[tuple[int, Query]] = []
    for index, query in queries:
        request_id = query.client, query.request
        message = query.client, query.message, query.wants_uncertainty
        if request_id in ids or message in messages:
            repeats.append((index, query))
            continue
        ids.add(request_id)
        messages.add(message)
        first.append((index, query))
    return first, repeats


def build_answer_body(
    values: Float[Tensor, " C"], unit: str, uncertainty: Float[Tensor, "2"] | None
) -> bytes:
    """Return an answer as JSON: what the mechanism gave, and what follows from it."""
    body: dict[str, object] = {
        "unit": unit,
        "label": int(values.argmax()),
        "values": values.tolist(),
    }
    if uncertainty is not None:
        body |= {"entropy": float(uncertainty[0]), "information": float(uncertainty[1])}
    return json.dumps(body).encode()


def add_probabilities(
    body: bytes, fields: dict[str, object], label: int, probabilities: list[float]
) -> bytes:
    """Return a stored answer, of which `fields` are the content, with label and probabilities."""
    if fields["label"] != label:  # the largest value need not be the most probable class
        body = json.dumps({**fields, "label": label}).encode()
    numbers = ", ".join(f"{p:.{PROBABILITY_DIGITS}f}" for p in probabilities)
    return body[:-1] + f', "probabilities": [{numbers}]}}'.encode()
