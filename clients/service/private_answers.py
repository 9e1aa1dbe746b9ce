"""Private answers of a served model: drawn together, charged and stored at once, then told.

The answers protect the INPUT of a query against the reader of the answer. None leaves before its
charge and the answer itself, for repeats, are durable. HTTP service, Flower node, playground and
private layer answer by `ChargedMechanism.answer` only; it needs no web framework.
"""

import json
import math
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from hashlib import sha256
from typing import NamedTuple, final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call, vmap

from clients.service_messages import LeakCard
from fedcel.files import encode_tensors
from fedcel.metrics import bald, predictive_entropy
from fedcel.nets import SplitNet
from fedcel.posterior import Prediction
from fedcel.privacy import AnswerCalibration, Mechanism, perturb_rows
from fedcel.privacy.ledger import MICRO, Charge, Ledger, Receipt, Refusal, to_micro_epsilon
from fedcel.settings import NetSettings, PrivacySettings

PROBABILITY_DIGITS = 6
LABEL = re.compile(rb'"label": \d+')
MAX_TEXTS = 1024
"""Answers of which the text is kept: where a label is all that is told, there are no others."""
NO_SCORES: Mapping[int, Tensor] = {}

ENCODER_FORMAT = "1"
KEPT_KEYS = {"clip": 1.0, "clip-kind": "l1", "delta": 1e-6, "sensitivity": "none"}
KEPT_KEYS |= {"epsilons": "0.5,1,2,4,8"}
"""Keys that every mechanism had when the first digests were kept, with their values then."""


class Query(NamedTuple):
    """A checked query."""

    client: str
    request: str
    """The client's own id of it; empty: the message is its id, so that a repeat has the same."""
    message: bytes
    """D values, float32, little-endian."""
    wants_uncertainty: bool
    """Whether it also asks for entropy and BALD, for their price."""


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


@final
@dataclass(frozen=True)
class ChargedMechanism:
    """A mechanism of which every answer about a model is paid.

    Attributes:
        mechanism: Perturbs logits.
        ledger: Pays.
        model: Version of the model, as the ledger knows it.
        calibration: Adds probabilities; None: answers have none.
        phases: Seconds of each part of the last batch: noise, write, charge.
    """

    mechanism: Mechanism
    ledger: Ledger
    model: str
    calibration: AnswerCalibration | None = None
    phases: dict[str, float] = field(default_factory=dict, init=False, repr=False)

    def build_charge(
        self, client: str, request: str, digest: bytes, *, wants_uncertainty: bool = False
    ) -> Charge:
        """Return what the ledger has to book for a query; uncertainty costs an epsilon of its own.

        `digest` identifies all that decides the answer: a client pays once for equal ones.
        """
        request = request or sha256(self.model.encode() + digest).hexdigest()
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
        """Perturb logits (B, C), charge queries for it, and tell those that paid.

        Equal messages, and equal ids, of a client get the same answer, which is paid once; another
        draw is thrown away, seen by nobody. Rows that are not finite are refused, for nothing.
        LedgerError where the ledger cannot be written; nothing was answered. `scores` are entropy
        and BALD by the place of the queries that ask for them.
        """
        replies: list[PrivateAnswer | Refusal] = [Refusal("undefined", None)] * len(charges)
        is_finite = logits.isfinite().all(1)
        places = is_finite.nonzero().flatten().tolist()
        if not places:
            return replies
        with self.timed("noise"):
            values = self.mechanism.answer(logits[is_finite]).detach().double().numpy()
            asking = [place for place in places if place in scores]
            noisy_scores = {}
            if asking:  # at an epsilon of their own
                rows = torch.stack([scores[place] for place in asking])
                sensitivity = uncertainty_sensitivity(logits.shape[1])
                noisy_rows = perturb_rows(rows, self.mechanism.epsilon, sensitivity)
                noisy_scores = dict(zip(asking, noisy_rows.tolist(), strict=True))
        with self.timed("write"):
            unit = self.mechanism.unit
            bodies = [
                write_answer(unit, row.tobytes(), *noisy_scores.get(place, ()))
                for place, row in zip(places, values, strict=True)
            ]
        with self.timed("charge"):
            receipts = self.ledger.charge([charges[place] for place in places], bodies)
        paid = list[tuple[int, Receipt]]()
        told_rows = list[Sequence[float]]()
        for place, row, receipt in zip(places, values, receipts, strict=True):
            if isinstance(receipt, Refusal):
                replies[place] = receipt
                continue
            paid.append((place, receipt))
            told_rows.append(row if receipt.is_fresh else json.loads(receipt.answer)["values"])
        texts = [receipt.answer for _, receipt in paid]
        if self.calibration is not None and paid:  # follows from what is stored, for nothing
            probabilities = self.calibration.probabilities(np.array(told_rows, np.float64))
            texts = [
                add_probabilities(text, tuple(row))
                for text, row in zip(texts, probabilities.tolist(), strict=True)
            ]
        for (place, receipt), text in zip(paid, texts, strict=True):
            spent = charges[place].epsilon if receipt.is_fresh else 0
            replies[place] = PrivateAnswer(text, receipt.is_fresh, receipt.remaining, spent)
        return replies

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Note how long a phase takes."""
        start = time.perf_counter()
        yield
        self.phases[phase] = time.perf_counter() - start

    @cached_property
    def _epsilon(self) -> int:
        return to_micro_epsilon(self.mechanism.epsilon)


@lru_cache(MAX_TEXTS)
def write_answer(unit: str, values: bytes, *scores: float) -> bytes:
    """Return an answer as JSON, as the mechanism gave it: float64 `values`, entropy and BALD."""
    row = np.frombuffer(values, np.float64)
    answer = {"unit": unit, "label": int(row.argmax()), "values": row.tolist()}
    return json.dumps(answer | dict(zip(("entropy", "information"), scores, strict=False))).encode()


@lru_cache(MAX_TEXTS)
def add_probabilities(body: bytes, probabilities: tuple[float, ...]) -> bytes:
    """Return a stored answer with its probabilities and the label of the largest one."""
    numbers = ", ".join(f"{p:.{PROBABILITY_DIGITS}f}" for p in probabilities)
    label = probabilities.index(max(probabilities))  # that of the largest value need not be
    body = LABEL.sub(b'"label": %d' % label, body, count=1)
    return body[:-1] + f', "probabilities": [{numbers}]}}'.encode()


@final
@dataclass(frozen=True)
class ServedModel:
    """A model version; `heads` holds S samples of each parameter."""

    net: SplitNet
    heads: dict[str, Tensor]
    shape: tuple[int, ...]
    net_settings: NetSettings
    privacy: PrivacySettings
    leak: LeakCard | None = None
    """Leak of its messages, as the run measured it."""
    run_heads: Callable[[Tensor], Tensor] | None = None
    """Computes the heads' log-probabilities (S, B, C) elsewhere than in torch; None: there."""

    @property
    def samples(self) -> int:
        """Return the number of sampled heads, S."""
        return len(next(iter(self.heads.values())))

    @cached_property
    def classes(self) -> int:
        """Return the number of values in an answer."""
        return self.net.answer(torch.zeros(1, self.net.features)).shape[1]

    @cached_property
    def version(self) -> str:
        """Return 32 hex digits of a digest of the cut and all tensors that decide an answer."""
        digest = sha256(f"{self.net.cut!r}".encode())
        encoder = {f"encoder.{name}": value for name, value in self.net.device_parameters().items()}
        for name, value in sorted({**encoder, **self.heads}.items()):
            digest.update(f"{name}{tuple(value.shape)}".encode())
            digest.update(value.detach().contiguous().numpy().tobytes())
        return digest.hexdigest()[:32]

    @cached_property
    def encoder(self) -> bytes:
        """Return the device's half as safetensors; the metadata says how to build its net."""
        metadata = {
            "format": ENCODER_FORMAT,
            "model": self.version,
            "net": json.dumps(self.net_settings.model_dump(by_alias=True, serialize_as_any=True)),
            "shape": json.dumps(self.shape),
            "classes": str(self.classes),
            "sigma": repr(self.net.cut.sigma),
            "dropout": repr(self.net.cut.dropout),
            "noise-shape": self.net.noise_shape,
        }
        return encode_tensors(self.net.device_parameters(), metadata)

    def predict(self, messages: Float[Tensor, "B D"]) -> Prediction:
        """Answer smashed data with all heads, in one batched product."""
        if self.run_heads is not None:
            return Prediction(self.run_heads(messages))
        with torch.no_grad():
            return Prediction(self.compute_heads(messages))

    def compute_heads(self, messages: Float[Tensor, "B D"]) -> Float[Tensor, "S B C"]:
        """Compute each head's log-probabilities in torch."""
        if type(self.net.head) is nn.Linear and self.net.head.bias is not None:
            weight, bias = self.heads["weight"], self.heads["bias"]  # all of them are one product
            rows = nn.functional.linear(messages, weight.flatten(0, 1), bias.flatten())
            return rows.view(-1, *bias.shape).transpose(0, 1).log_softmax(-1)

        def answer(parameters: dict[str, Tensor]) -> Tensor:
            logits: Tensor = functional_call(self.net.head, parameters, (messages,))
            return logits

        return vmap(answer)(self.heads).log_softmax(-1)


@final
@dataclass(frozen=True)
class PrivateAnswerer:
    """Answers batches of queries with a model; attributes as of `ChargedMechanism`."""

    model: ServedModel
    mechanism: Mechanism
    ledger: Ledger
    calibration: AnswerCalibration | None = None

    def answer(self, queries: Sequence[Query]) -> list[PrivateAnswer | Refusal]:
        """Charge and answer queries of any clients, as `ChargedMechanism.answer` does."""
        if not queries:
            return []
        self.phases.clear()
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

    @property
    def phases(self) -> dict[str, float]:
        """Return the seconds of each part of the last batch: heads, noise, write, charge."""
        return self._paid.phases

    def digest(self, query: Query) -> bytes:
        """Return SHA-256 of a query's message and of everything else that decides its answer."""
        context = self._answer_contexts[query.wants_uncertainty]
        return sha256(context + b"\0" + query.message).digest()

    @cached_property
    def _answer_contexts(self) -> list[bytes]:
        """Return what decides an answer besides its message, without and with uncertainty.

        Canonical JSON of values only: the digests are kept for years, names in the code are not.
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
        return ChargedMechanism(self.mechanism, self.ledger, self.model.version, self.calibration)


def uncertainty_scores(prediction: Prediction) -> Float[Tensor, "B 2"]:
    """Return predictive entropy and BALD of each message in nats, both within [0, log C]."""
    probabilities = prediction.samples.double()
    scores = torch.stack([predictive_entropy(probabilities), bald(probabilities)], 1)
    return scores.clamp(0.0, math.log(probabilities.shape[2]))


def uncertainty_sensitivity(classes: int) -> float:
    """Return the largest L1 distance of two rows of `uncertainty_scores`: 2 log C."""
    return 2 * math.log(classes)
