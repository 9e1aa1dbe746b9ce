"""The evaluation client: scores a model, and answers smashed data with private logits.

It protects the INPUT of a query against whoever reads the answer; the images a model was trained
on are not protected by it, and answers to many queries add up.
"""

from collections.abc import Sequence

import numpy as np
import torch
from flwr.client import NumPyClient
from flwr.common import NDArrays, Scalar
from numpy.typing import NDArray
from torch import Tensor

from fedcel import metrics
from fedcel.arrays import FlatNet, to_vector
from fedcel.data import Images
from fedcel.posterior.predict import Prediction, answer_all, predict
from fedcel.privacy import private_logits, utility
from fedcel.seeding import generator
from fedcel.settings import Settings


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
        stream = generator(self.settings.seed, "evaluation", int(config.get("server-round", 0)))
        samples = self.samples or [to_vector(parameters)]
        found = predict(self.flat, samples, x, stream, self.settings.chain.scope)
        scores = metrics.scores(found.probabilities, y)
        kept = utility(found.logits, y, self.settings.privacy)
        return scores["nll"], len(y), {**scores, **{f"private-{k}": v for k, v in kept.items()}}

    def query(self, smashed: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return private logits (B, K) of smashed data (B, D) as it arrived.

        One message is answered by the average over all sampled heads, clipped, then perturbed by
        the vetted Laplace sampler. ValueError on a wrong shape, no samples, or undefined values.
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
        logits = Prediction(answer_all(self.flat, self.samples, message)).logits
        answer: NDArray[np.float32] = private_logits(logits, self.settings.privacy).numpy()
        return answer
