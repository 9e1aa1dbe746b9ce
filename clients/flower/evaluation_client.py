"""The evaluation client: scores a model, and answers smashed data with private logits.

It protects the INPUT of a query against whoever reads the answer; the images a model was trained
on are not protected by it, and answers to many queries add up.
"""

import json
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from flwr.client import NumPyClient
from flwr.common import NDArrays, Scalar
from numpy.typing import NDArray
from torch import Tensor

from clients.service import PrivateAnswerer, Query, build_served, to_micro_epsilon
from fedcel.data import Images
from fedcel.metrics import calibration
from fedcel.nets import FlatNet, to_vector
from fedcel.posterior import Prediction, answer_all, predict
from fedcel.privacy import build_mechanism, measure_utility, private_logits
from fedcel.privacy.ledger import MICRO, Ledger, Refusal
from fedcel.seeding import make_generator
from fedcel.settings import Settings


class Account(NamedTuple):
    """Which ledger on this node pays for answers, and for whom."""

    ledger: Path
    client: str


class EvaluationClient(NumPyClient):
    """Holds images to score on, and the posterior samples whose averaged answer it serves.

    On a node these are the holder's own images; in an evaluation of a run they are test images.
    """

    def __init__(
        self, settings: Settings, flat: FlatNet, images: Images, samples: Sequence[Tensor] = ()
    ) -> None:
        self.settings = settings
        self.flat = flat
        self.images = images
        self.samples = list(samples)

    def evaluate(
        self, parameters: NDArrays, config: dict[str, Scalar]
    ) -> tuple[float, int, dict[str, Scalar]]:
        """Return NLL in nats, number of images, accuracy, ECE and the private logits' utility.

        Scores the posterior samples, or `parameters` alone where there are none.
        """
        x, y = self.images
        stream = make_generator(
            self.settings.seed, "evaluation", int(config.get("server-round", 0))
        )
        samples = self.samples or [to_vector(parameters)]
        found = predict(self.flat, samples, x, stream, self.settings.chain.scope)
        scores = calibration.score_probabilities(found.probabilities, y)
        kept = measure_utility(found.logits, y, self.settings.privacy)
        return scores["nll"], len(y), {**scores, **{f"private-{k}": v for k, v in kept.items()}}

    def query(
        self, smashed: NDArray[np.float32], account: Account | None = None
    ) -> NDArray[np.float32]:
        """Return private logits (B, K) of smashed data (B, D) as it arrived.

        One message is answered by the average over all sampled heads, clipped, then perturbed by
        the mechanism. With an `account` each message is charged before its noise is drawn, and the
        same message gets the same answer. ValueError on a wrong shape, no samples, undefined
        values, or where the account cannot pay.
        """
        message = torch.from_numpy(np.asarray(smashed, dtype=np.float32))
        if message.dim() != 2 or message.shape[1] != self.flat.net.features:
            raise ValueError(
                f"smashed data are {tuple(message.shape)}, must be (B, {self.flat.net.features})"
            )
        if not message.isfinite().all():
            raise ValueError("smashed data hold NaN or infinity; send finite values")
        if not self.samples:
            raise ValueError("no model to answer with; pass posterior samples or a last model")
        if account:
            return self._charged(message, account)
        logits = Prediction(answer_all(self.flat, self.samples, message)).logits
        answer: NDArray[np.float32] = private_logits(logits, self.settings.privacy).numpy()
        return answer

    def _charged(self, message: Tensor, account: Account) -> NDArray[np.float32]:
        """Return the answers that the account pays for, all or none of which are told."""
        model = build_served(self.settings, self.flat, self.samples, tuple(self.images.x.shape[1:]))
        rows = [row.numpy().astype("<f4").tobytes() for row in message]
        mechanism = build_mechanism(self.settings.privacy, model.classes)
        with Ledger.open(account.ledger) as ledger:
            ledger.admit(account.client, to_micro_epsilon(self.settings.privacy.budget))
            desk = PrivateAnswerer(model, mechanism, ledger, lambda *_: None)
            found = desk.answer(
                [identify_query(desk, Query(account.client, "", row, False)) for row in rows]
            )
        values = []
        for got in found:
            if isinstance(got, Refusal):
                raise ValueError(
                    f"{account.client!r} cannot pay for an answer: {got.reason}, epsilon "
                    f"{got.remaining / MICRO:g} left; see `fedcel ledger list {account.ledger}`"
                )
            values.append(json.loads(got.body)["values"])
        return np.asarray(values, np.float32)


def identify_query(desk: PrivateAnswerer, ask: Query) -> Query:
    """Return the question under an id of all that decides its answer: a repeat has the same."""
    name = sha256(desk.model.version.encode() + desk.digest(ask)).hexdigest()
    return ask._replace(request=name)
