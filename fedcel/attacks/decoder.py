"""Inverse network: learn images from smashed data, on images of the attacker's own.

Source: the decoding attack of Xia et al., CVPR 2025, with fresh noise in every epoch, so that the
attacker trains through the defence.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from fedcel.attacks.inversion_training import DEFAULT, Effort, train_and_invert
from fedcel.attacks.protocol import Progress
from fedcel.data import Images
from fedcel.leakage import Observation


def pass_through(observed: Float[Tensor, "N F"]) -> Float[Tensor, "N F"]:
    """Return the observation as it is."""
    return observed


@dataclass(frozen=True)
class Decoder:
    """The decoder as an attack: Adam, its step falling as a cosine; the best epoch is kept."""

    name: str = "decoder"
    needs: frozenset[str] = frozenset()
    observes: str = "smashed-data"
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
        """Return one image in [0, 1] per observed vector."""
        return train_and_invert(
            observation,
            auxiliary.x,
            observed,
            self.effort,
            pass_through,
            budget,
            generator,
            progress,
        )
