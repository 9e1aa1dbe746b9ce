"""Inverse network: learn images from smashed data, on images of the attacker's own."""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from fedcel.attacks.attacker import Attacker, BaseAttack, Rebuild, Reconstructions
from fedcel.attacks.inversion_training import (
    DEFAULT_EFFORT,
    Effort,
    apply_network,
    train_inverter,
)


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
        return self.learn(attacker)(observed)

    def learn(self, attacker: Attacker) -> Rebuild:
        """Train the network once, for messages that arrive later."""
        net, _ = train_inverter(attacker, self.effort)
        return lambda observed: apply_network(net, observed)
