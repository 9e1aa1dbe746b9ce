"""The rest of a cut model, which answers features with Gaussian noise."""

from math import inf

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from fedcel.errors import NetError
from fedcel.metrics import chance_accuracy, is_at_chance
from fedcel.nets import choose_batch_size, evaluation_mode, place_images
from fedcel.seeding import make_generator
from fedcel.tensors import check_features
from fedcel.torch_state import usual_torch_state

MESSAGES = 400
"""Messages whose answers are counted at each noise, or one an image where these are more."""
ANSWERS = 16
"""Answers that are drawn of each image for the sensitivity of answers."""
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
        self, sigma: float | Float[Tensor, " D"], most_wrong: float = inf
    ) -> Float[Tensor, " N"]:
        """Compute the share of right answers to the messages of each image.

        Args:
            sigma: Standard deviation of the noise: one, or one a feature.
            most_wrong: Wrong answers to a message of each image, on average, after which no more
                are asked for: these count as wrong.
        """
        right = torch.zeros(len(self.features), dtype=torch.float64)
        size, answered = choose_batch_size(self.features), 0
        with evaluation_mode(self.head), torch.no_grad():
            for draw in range(self.draws):
                generator = make_generator(self.seed, f"cut/{self.layer}", draw)
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


@usual_torch_state()
def measure_sensitivity(
    head: nn.Module,
    features: Float[Tensor, "N D"],
    *,
    shape: tuple[int, ...],
    sigma: float = 0.0,
    seed: int = 0,
) -> Float[Tensor, " D"]:
    """Measure how much noise on each feature changes the answers, per variance of the noise.

    Diagonal of the mean Fisher information F of a drawn answer about the features. Noise of
    variances v changes the answers by a KL divergence of sum_i v_i F_ii / 2, to second order.

    Args:
        head: From features in their own shape to logits; it needs a gradient.
        features: (N, D), of images.
        shape: That of one image's features.
        sigma: Noise that is on all features already: F is that of noisy features.
        seed: Draws noise and answers.

    Returns:
        F_ii, (D,), in nats over the features' unit squared.

    References:
        Amari, Natural Gradient Works Efficiently in Learning, 1998: the Fisher metric.
    """
    generator = make_generator(seed, "answer-sensitivity")
    total = torch.zeros(features.shape[1], dtype=torch.float64)
    with evaluation_mode(head):
        for rows in torch.split(features, choose_batch_size(features)):
            noisy = rows + sigma * torch.randn(rows.shape, generator=generator)
            smashed = place_images(noisy.reshape(-1, *shape), head).detach().requires_grad_()
            log_chances = head(smashed).log_softmax(1)
            answers = (
                log_chances.detach().exp().cpu().multinomial(ANSWERS, True, generator=generator)
            )
            for column in answers.to(log_chances.device).unbind(1):
                chosen = log_chances.gather(1, column[:, None]).sum()
                (slopes,) = torch.autograd.grad(chosen, smashed, retain_graph=True)
                total += slopes.flatten(1).cpu().double().square().sum(0)
    return total / (len(features) * ANSWERS)
