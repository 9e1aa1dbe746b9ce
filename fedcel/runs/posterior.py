"""A finished run as one callable: images in, probabilities with their uncertainty out."""

from pathlib import Path
from typing import NamedTuple, final

import torch
from jaxtyping import Float
from torch import Tensor

from fedcel.metrics import calibration
from fedcel.posterior import predict
from fedcel.runs import run_folder
from fedcel.runs.evaluation import posterior_samples
from fedcel.short_repr import show_shapes
from fedcel.tensors import ArrayLike, to_tensor
from fedcel.torch_state import make_generator

_IMAGES_AT_ONCE = 512


@show_shapes
class UncertainPrediction(NamedTuple):
    """Predictions of the posterior for N images; entropies in nats."""

    probabilities: Float[Tensor, "N K"]
    """The mean of the samples' probabilities."""
    entropy: Float[Tensor, " N"]
    """The entropy of the averaged probabilities: all uncertainty."""
    bald: Float[Tensor, " N"]
    """Disagreement of the samples: uncertainty that more data would remove (Houlsby et al.,
    2011, eq. 1)."""


@final
class Posterior:
    """Predicts images by the samples of a run's chain, or by its last model if there are none.

    Args:
        run: As `read_run` returns it.
    """

    def __init__(self, run: run_folder.Run) -> None:
        self.run = run

    @staticmethod
    def open(folder: str | Path) -> "Posterior":
        """Open the posterior of a run folder.

        Args:
            folder: As `fedcel simulate` wrote it.

        Raises:
            RunError: The folder is not a run, or incomplete.
        """
        return Posterior(run_folder.read_run(folder))

    def __call__(self, images: ArrayLike) -> UncertainPrediction:
        """Predict images, one noisy message each.

        Args:
            images: (N, C, H, W) in [0, 1], a tensor or an array.

        Returns:
            Probabilities, and their uncertainty.

        Raises:
            ValueError: The images have another shape than the run's, or are no floating numbers.
        """
        shape = self.run.splits.shape
        x = to_tensor(images, "images")
        if tuple(x.shape[1:]) != tuple(shape):
            raise ValueError(
                f"images are {tuple(x.shape)}, must be (N, {', '.join(map(str, shape))})"
            )
        if not x.is_floating_point():
            raise ValueError(f"images are of type {x.dtype}, must be in [0, 1]; divide by 255")
        samples = posterior_samples(self.run)
        scope = self.run.settings.chain.scope
        noise = make_generator(self.run.settings.seed, "answers-to-images")
        parts = [
            predict(self.run.flat, samples, piece, noise, scope=scope).samples
            for piece in torch.split(x.float(), _IMAGES_AT_ONCE)
        ]
        probabilities = torch.cat(parts, 1)
        return UncertainPrediction(
            probabilities.mean(0),
            calibration.predictive_entropy(probabilities),
            calibration.bald(probabilities),
        )
