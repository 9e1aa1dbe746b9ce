"""Logit inversion: learn images from the answers of a service that counts its queries.

Source: Yang et al., CCS 2019 (inversion of prediction vectors), with the answers of each image
asked several times over, because the service adds noise of its own.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from fedcel.attacks.inversion_training import DEFAULT, Effort, train_and_invert
from fedcel.attacks.protocol import Progress
from fedcel.data import Images
from fedcel.leakage import Observation


def centre_logits(answers: Float[Tensor, "N K"]) -> Float[Tensor, "N K"]:
    """Return logits with mean 0: a number added to all of them means nothing."""
    return answers - answers.mean(1, keepdim=True)


@dataclass(frozen=True)
class LogitInversion:
    """The decoder's training on answers; each auxiliary image is asked `effort.repeats` times."""

    name: str = "logit-inversion"
    needs: frozenset[str] = frozenset()
    observes: str = "private-logits"
    effort: Effort = DEFAULT

    def reconstruct(
        self,
        observation: Observation,
        auxiliary: Images,
        observed: Float[Tensor, "T F"],
        budget: float,
        generator: torch.Generator,
        progress: Progress | None = None,
    ) -> Float[Tensor, "T C H W"]:
        """Return one image in [0, 1] per answer (T, classes)."""
        return train_and_invert(
            observation,
            auxiliary.x,
            observed,
            self.effort,
            centre_logits,
            budget,
            generator,
            progress,
        )
