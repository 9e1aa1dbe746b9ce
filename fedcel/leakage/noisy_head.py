"""The rest of a cut model, which answers features with Gaussian noise."""

from math import inf

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from fedcel.errors import NetError
from fedcel.metrics import chance_accuracy, is_at_chance
from fedcel.nets import choose_batch_size, evaluation_mode, place_images
from fedcel.tensors import check_features
from fedcel.torch_state import make_generator

MESSAGES = 400
"""Messages whose answers are counted at each noise, or one an image where these are more."""
ROUNDING = 1e-9


def choose_targets(
    logits: Float[Tensor, "N C"], labels: Int[Tensor, " N"] | None
) -> Int[Tensor, " N"]:
    """Choose what answers are compared with: the labels where the model knows them, else its own.

    Args:
        logits: Of the images, without noise, (N, C).
        labels: Classes from 0, (N,); None: none are known.

    Returns:
        The labels themselves, or the answers without noise, (N,).

    Raises:
        NetError: The model gives no logits.
    """
    if logits.dim() != 2 or logits.shape[1] < 2:
        raise NetError(
            f"the model gives {tuple(logits.shape[1:])} values an image, must give a logit for "
            "each of 2 classes or more; give a classifier"
        )
    check_features(logits, "logits")
    answers = logits.argmax(1)
    if labels is None or int(labels.max()) >= logits.shape[1]:
        return answers
    accuracy = float((answers == labels).double().mean())
    is_unknown = is_at_chance(accuracy, len(labels), chance_accuracy(labels))
    return answers if is_unknown else labels


class NoisyHead:
    """The rest of a model, which answers features of given images with noise.

    The noise of an image is the same at each level, times the level.

    Args:
        head: From features in their own shape to logits.
        features: (N, D), of the images.
        shape: That of one image's features.
        targets: The right answers, (N,).
        seed: Decides the noise, with the layer.
        layer: Name of the cut.
    """

    def __init__(
        self,
        head: nn.Module,
        features: Float[Tensor, "N D"],
        *,
        shape: tuple[int, ...],
        targets: Int[Tensor, " N"],
        seed: int,
        layer: str,
    ) -> None:
        self.head, self.features, self.shape, self.targets = head, features, shape, targets
        self.seed, self.layer = seed, layer
        self.draws = max(1, MESSAGES // len(features))

    def score(
        self,
        sigma: float | Float[Tensor, " D"],
        most_wrong: float = inf,
        *,
        is_fresh: bool = False,
    ) -> Float[Tensor, " N"]:
        """Compute the share of right answers to the messages of each image.

        Args:
            sigma: Standard deviation of the noise: one, or one a feature.
            most_wrong: Wrong answers to a message of each image, on average, after which no more
                are asked for: these count as wrong.
            is_fresh: Whether the noise is another than that of all other calls: noise that was
                chosen by its accuracy is lucky where it was chosen.
        """
        right = torch.zeros(len(self.features), dtype=torch.float64)
        size, answered = choose_batch_size(self.features), 0
        with evaluation_mode(self.head), torch.no_grad():
            for draw in range(self.draws):
                number = draw + self.draws * is_fresh
                generator = make_generator(self.seed, f"cut/{self.layer}", number)
                for rows in torch.split(torch.arange(len(right)), size):
                    noise = torch.randn(len(rows), self.features.shape[1], generator=generator)
                    answers = self._answer(self.features[rows] + sigma * noise).argmax(1).cpu()
                    right[rows] += (answers == self.targets[rows]).double()
                    answered += len(rows)
                    if answered - float(right.sum()) > self.draws * most_wrong + ROUNDING:
                        return right / self.draws
        return right / self.draws

    def _answer(self, smashed: Float[Tensor, "B D"]) -> Float[Tensor, "B C"]:
        """Compute the logits of messages."""
        logits: Tensor = self.head(place_images(smashed.reshape(-1, *self.shape), self.head))
        return logits
