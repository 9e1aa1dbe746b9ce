"""Inverse network: learn images from smashed data, on images of the attacker's own."""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from fedcel.attacks.attacker import Attacker, BaseAttack, Reconstructions
from fedcel.attacks.inversion_training import DEFAULT_EFFORT, Effort, train_and_invert


@dataclass(frozen=True)
class Decoder(BaseAttack):
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

    def invert(self, attacker: Attacker, observed: Float[Tensor, "T F"]) -> Reconstructions:
        """Return one image per message."""
        return train_and_invert(attacker, observed, self.effort)
