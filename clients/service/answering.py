"""Queries that wait are answered together: perturbed, then charged and stored at once, then told.

The answers protect the INPUT of a query against whoever reads the answer. None leaves before its
charge and the answer itself, for repeats, are durable.

Nothing in here needs the web framework: a Flower node answers with it, too.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import NamedTuple, final

import numpy as np
import torch
from torch import Tensor

from clients.service.charged_answers import ChargedMechanism, PrivateAnswer
from clients.service.model import ServedModel, uncertainty_scores, uncertainty_sensitivity
from fedcel.posterior import Prediction
from fedcel.privacy import AnswerCalibration, Mechanism, perturb_rows
from fedcel.privacy.ledger import Charge, Ledger, Refusal, to_micro_epsilon


class Query(NamedTuple):
    """One query as it arrived, checked."""

    client: str
    request: str
    """The client's own id of it."""
    message: bytes
    """D values, float32, little-endian."""
    wants_uncertainty: bool
    """Whether it also asks for entropy and BALD, for their price."""
    version: str = ""
    """Model version that it was made for, where several are served."""


@final
@dataclass(frozen=True)
class PrivateAnswerer:
    """Answers batches of queries with a model, a mechanism and the ledger that pays.

    `observe_phase` is told the seconds of each part: heads, noise, write, charge.
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
        if not queries:
            return []
        with self._paid.timed("heads"):
            message_bytes = bytearray().join(query.message for query in queries)
            messages = torch.frombuffer(message_bytes, dtype=torch.float32)
            prediction = self.model.predict(messages.reshape(len(queries), -1))
            is_finite = np.isfinite(prediction.log_samples.numpy()).all((0, 2))
        replies: list[PrivateAnswer | Refusal] = [Refusal("undefined", None) for _ in queries]
        answerable: list[int] = is_finite.nonzero()[0].tolist()
        if not answerable:
            return replies
        if len(answerable) < len(queries):
            prediction = Prediction(prediction.log_samples[:, answerable])
        finite_queries = [queries[place] for place in answerable]
        answers = self._paid.answer(
            [self.build_charge(query) for query in finite_queries],
            prediction.logits,
            lambda: self._draw_uncertainty(prediction, finite_queries),
        )
        for place, answer in zip(answerable, answers, strict=True):
            replies[place] = answer
        return replies

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

    @cached_property
    def _paid(self) -> ChargedMechanism:
        return ChargedMechanism(self.mechanism, self.ledger, self.calibration, self.observe_phase)

    def _draw_uncertainty(
        self, prediction: Prediction, queries: Sequence[Query]
    ) -> dict[int, Tensor]:
        """Return perturbed entropy and BALD, by the place of the queries that ask for it."""
        asking = [place for place, query in enumerate(queries) if query.wants_uncertainty]
        if not asking:
            return {}
        noisy = perturb_rows(
            uncertainty_scores(prediction)[asking],
            self.mechanism.epsilon,
            uncertainty_sensitivity(self.model.classes),
        )
        return dict(zip(asking, noisy, strict=True))
