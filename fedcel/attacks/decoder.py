"""Inverse network: learn images from smashed data, on images of the attacker's own."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from fedcel.attacks.inversion_training import DEFAULT_EFFORT, Effort, train_and_invert
from fedcel.attacks.protocol import Progress
from fedcel.data import Images
from fedcel.leakage import Observation


@dataclass(frozen=True)
class Decoder:
    """Train a network from messages back to images; the best epoch is kept.

    The attacker trains through the defence: every epoch sees messages with fresh noise.

    Args:
        name, needs, observes: See `Attack`.
        effort: How the network is trained.

    References:
        Xia et al., CVPR 2025 (the decoding attack).
    """

    name: str = "decoder"
    needs: frozenset[str] = frozenset()
    observes: str = "smashed-data"
    effort: Effort = DEFAULT_EFFORT

    def reconstruct(
        self,
        observation: Observation,
        auxiliary: Images,
        observed: Float[Tensor, "T F"],
        budget: float,
        generator: torch.Generator,
        progress: Progress | None = None,
    ) -> Float[Tensor, "T C H W"]:
        """Reconstruct one image per message; see `Attack.reconstruct`."""
        effort = self.effort.scaled(budget)
        return train_and_invert(
            observation, auxiliary.x, observed, effort, generator=generator, progress=progress
        )
