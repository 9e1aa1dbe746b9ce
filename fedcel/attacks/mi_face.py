"""MI-FACE: the picture that the network is surest shows the answered class."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from fedcel.attacks.attacker import Attacker, BaseAttack, Reconstructions
from fedcel.attacks.pixel_descent import total_variation
from fedcel.leakage import LOGITS, ObservationLogits, make_refusal


@dataclass(frozen=True)
class MIFace(BaseAttack):
    """Search the picture that the network is surest shows the answered class.

    It descends 1 - p_y(x) + weight TV(x) from the attacker's mean image, y the most probable
    answer. It finds what a class looks like, not who sent the image: all targets of a class get the
    same picture.

    Args:
        name, needs, observes: See `Attack`.
        steps: Steps of the descent at budget 1.
        rate: Step size.
        weight: Weight of the total variation, 0 or more.

    References:
        Fredrikson et al., CCS 2015, algorithm 1.
    """

    name: str = "mi-face"
    needs: frozenset[str] = frozenset({LOGITS})
    observes: str = "private-logits"
    steps: int = 5000
    rate: float = 0.1
    weight: float = 0.1

    def invert(self, attacker: Attacker, observed: Float[Tensor, "T F"]) -> Reconstructions:
        """Return its class's picture per answer."""
        observation = attacker.observation
        if not isinstance(observation, ObservationLogits):
            raise make_refusal(observation, LOGITS)
        classes, class_of_target = torch.unique(observed.argmax(1), return_inverse=True)
        rows = torch.arange(len(classes))
        images = attacker.auxiliary.x.mean(0).repeat(len(classes), 1, 1, 1)
        steps = attacker.scale(self.steps)
        for step in range(1, steps + 1):
            images.requires_grad_()
            probability = observation.logits(images).softmax(1)[rows, classes]
            loss = 1 - probability + self.weight * total_variation(images)
            (slope,) = torch.autograd.grad(loss.sum(), images)
            images = (images - self.rate * slope).detach().clamp(0, 1)
            least = float(probability.detach().min())
            attacker.report("step", step, steps, f"sure to {least:.3f} or more")
        return images[class_of_target]
