"""Evaluation client: scores a model, and answers smashed data with private logits.

It protects the INPUT of a query against whoever reads the answer; the images a model was trained
on are not protected by it, and answers to many queries add up.
"""

import json
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from flwr.client import NumPyClient
from flwr.common import NDArrays, Scalar
from numpy.typing import NDArray
from torch import Tensor

from clients.service import PrivateAnswerer, Query, build_served
from fedcel.data import Images
from fedcel.federation import record_names
from fedcel.metrics import calibration
from fedcel.nets import FlatNet, to_vector
from fedcel.posterior import Prediction, apply_heads, predict
from fedcel.privacy import LabelledLogits, measure_utility, private_logits
from fedcel.privacy.ledger import MICRO, Ledger, LedgerAddress, Refusal, to_granted_micro
from fedcel.settings import Settings
from fedcel.torch_state import make_generator


class Account(NamedTuple):
    """Ledger on this node that pays for answers, and the client who asks."""

    ledger: LedgerAddress
    client: str


class EvaluationClient(NumPyClient):
    """Holds images to score on, and the posterior samples whose averaged answer it serves.

    On a node these are the client's own images; in an evaluation of a run they are test images.
    """

    def __init__(
        self, settings: Settings, flat: FlatNet, images: Images, samples: Sequence[Tensor] = ()
    ) -> None:
        """Bind the client to its images.

        Args:
            settings: The run's settings.
            flat: The net to work with; its parameters do not matter.
            images: The images that it scores on.
            samples: Posterior samples, (P,) each; without them it answers no query.
        """
        self.settings = settings
        self.flat = flat
        self.images = images
        self.samples = list(samples)

    def evaluate(
        self, parameters: NDArrays, config: dict[str, Scalar]
    ) -> tuple[float, int, dict[str, Scalar]]:
        """Score the posterior samples, or `parameters` where there are none, on the images.

        Args:
            parameters: The global model, one array a layer.
            config: `server-round`, 0 where it is missing.

        Returns:
            NLL in nats, number of images, and accuracy, ECE and the private logits' utility.
        """
        x, y = self.images
        number = int(config.get(record_names.ROUND, 0))
        stream = make_generator(self.settings.seed, "evaluation", number)
        samples = self.samples or [to_vector(parameters)]
        prediction = predict(self.flat, samples, x, stream, scope=self.settings.chain.scope)
        scores = calibration.score_probabilities(prediction.probabilities, y)
        utility = measure_utility(LabelledLogits(prediction.logits, y), self.settings.privacy)
        private = {f"private-{key}": value for key, value in utility.items()}
        return scores["nll"], len(y), {**scores, **private}

    def query(
        self, smashed: NDArray[np.float32], account: Account | None = None
    ) -> NDArray[np.float32]:
        """Answer smashed data with private logits.

        One message is answered by the average over all sampled heads, clipped, then perturbed by
        the mechanism.

        Args:
            smashed: As they arrived, (B, D).
            account: Each message is charged to it before its noise is drawn, and the same message
                gets the same answer; None: nothing is charged.

        Returns:
            Logits, (B, K).

        Raises:
            ValueError: The shape is wrong, there are no samples, a value is undefined, or the
                account cannot pay.
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
            return self._answer_charged(message, account)
        logits = Prediction(apply_heads(self.flat, self.samples, message)).logits
        answer: NDArray[np.float32] = private_logits(logits, self.settings.privacy).numpy()
        return answer

    def _answer_charged(self, message: Tensor, account: Account) -> NDArray[np.float32]:
        """Return the answers that the account pays for; where it cannot, none of them."""
        model = build_served(self.settings, self.flat, self.samples, tuple(self.images.x.shape[1:]))
        mechanism = self.settings.privacy.build(model.classes)
        with Ledger.open(account.ledger) as ledger:
            ledger.admit(account.client, to_granted_micro(self.settings.privacy.budget))
            answerer = PrivateAnswerer(model, mechanism, ledger)
            contents = [row.numpy().astype("<f4").tobytes() for row in message]
            answers = answerer.answer(
                [Query(account.client, "", content, False) for content in contents]
            )
        values = []
        for answer in answers:
            if isinstance(answer, Refusal):
                paid = sum(not isinstance(other, Refusal) for other in answers)
                hint = f"; {paid} others of the query are paid, and free when asked again alone"
                raise ValueError(describe_refusal(answer, account) + (hint if paid else ""))
            values.append(json.loads(answer.body)["values"])
        return np.asarray(values, np.float32)


def describe_refusal(refusal: Refusal, account: Account) -> str:
    """Return why a message is not answered."""
    if refusal.remaining is None:
        return (
            "the model has no finite answer to a message, which costs nothing; send what its "
            "encoder gives, or check its weights"
        )
    return (
        f"{account.client!r} cannot pay for an answer: {refusal.reason}, epsilon "
        f"{refusal.remaining / MICRO:g} left; see `fedcel ledger list {account.ledger}`"
    )
