"""A finished run as one callable: images in, probabilities with their uncertainty out."""

from pathlib import Path
from typing import NamedTuple, final

import torch
from jaxtyping import Float
from torch import Tensor

from fedcel.metrics import calibration
from fedcel.posterior import predict
from fedcel.runs import run_folder
from fedcel.seeding import make_generator

PIECE = 512  # images answered at once


class Uncertain(NamedTuple):
    """What the posterior says of N images; entropies in nats."""

    probabilities: Float[Tensor, "N K"]
    entropy: Float[Tensor, " N"]
    """Of the averaged probabilities: all uncertainty."""
    bald: Float[Tensor, " N"]
    """What the samples disagree about: uncertainty that more data would remove (Houlsby et al.,
    2011, eq. 1)."""


@final
class Posterior:
    """The samples of a run's chain, or its last model where it kept none."""

    def __init__(self, run: run_folder.Run) -> None:
        self.run = run

    @staticmethod
    def open(folder: str | Path) -> "Posterior":
        """Return the posterior of a run folder; RunError says what is missing."""
        return Posterior(run_folder.read_run(Path(folder)))

    def __call__(self, images: Float[Tensor, "N C H W"]) -> Uncertain:
        """Return probabilities and uncertainty of images in [0, 1], one noisy message each.

        ValueError on another shape than the run's images have.
        """
        shape = self.run.splits.shape
        if tuple(images.shape[1:]) != tuple(shape):
            raise ValueError(
                f"images are {tuple(images.shape)}, must be (N, {', '.join(map(str, shape))})"
            )
        samples, scope = self.run.samples or [self.run.model], self.run.settings.chain.scope
        noise = make_generator(self.run.settings.seed, "answers-to-images")
        parts = [
            predict(self.run.flat, samples, piece, noise, scope).samples
            for piece in torch.split(images, PIECE)
        ]
        found = torch.cat(parts, 1)
        return Uncertain(
            found.mean(0), calibration.predictive_entropy(found), calibration.bald(found)
        )
