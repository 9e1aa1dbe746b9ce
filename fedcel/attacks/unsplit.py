"""UnSplit: only the encoder's layers are known; images and parameters are searched in turn."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from fedcel.attacks.attacker import Attacker, BaseAttack, Reconstructions
from fedcel.attacks.pixel_descent import total_variation
from fedcel.leakage import ARCHITECTURE, ObservationArchitecture, make_refusal


@dataclass(frozen=True)
class UnSplit(BaseAttack):
    """Search images and an encoder that together explain the messages.

    It minimises mean (f'(x) - z~)^2 + weight TV(x), in turn over the images x and over f'. All
    targets share one f'. It starts at the mean of the attacker's own images, which the source,
    whose attacker has none, does not. Pixels and parameters are known only up to what the other
    undoes: it works on a shallow convolution, and on little else.

    Args:
        name, needs, observes: See `Attack`.
        rounds: Turns at budget 1.
        steps: Steps of each of both in a turn.
        rate: Adam's step.
        weight: Weight of the total variation, 0 or more.

    References:
        Erdogan et al., WPES 2022, algorithm 1.
    """

    name: str = "unsplit"
    needs: frozenset[str] = frozenset({ARCHITECTURE})
    observes: str = "smashed-data"
    rounds: int = 10
    steps: int = 100
    rate: float = 1e-3
    weight: float = 0.01

    def invert(self, attacker: Attacker, observed: Float[Tensor, "T F"]) -> Reconstructions:
        """Return one image per message."""
        observation = attacker.observation
        if not isinstance(observation, ObservationArchitecture):
            raise make_refusal(observation, ARCHITECTURE)
        encoder = observation.fresh_encoder(attacker.generator)
        images = attacker.auxiliary.x.mean(0).repeat(len(observed), 1, 1, 1).requires_grad_()
        unknowns: list[list[Tensor]] = [[images], list(encoder.parameters())]
        adams = [torch.optim.Adam(unknown, self.rate, amsgrad=True) for unknown in unknowns]
        rounds = attacker.scale(self.rounds)
        for number in range(1, rounds + 1):
            for unknown, adam in zip(unknowns, adams, strict=True):
                for _ in range(self.steps):
                    gap = (encoder(images) - observed).square().mean(1)
                    loss = gap + self.weight * total_variation(images)
                    adam.zero_grad()
                    loss.sum().backward(inputs=unknown)
                    adam.step()
                    with torch.no_grad():
                        images.clamp_(0, 1)
            mean_loss = float(loss.detach().mean())
            attacker.report("round", number, rounds, f"loss {mean_loss:.4g}")
        return images.detach()
