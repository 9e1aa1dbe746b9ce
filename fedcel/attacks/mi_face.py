"""MI-FACE: the picture that the network is surest shows the answered class."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from fedcel.attacks.pixel_descent import total_variation
from fedcel.attacks.protocol import Progress, report_progress
from fedcel.data import Images
from fedcel.leakage import LOGITS, Observation, ObservationLogits, make_refusal


@dataclass(frozen=True)
class MIFace:
    """Search the picture that the network is surest shows the answered class.

    It descends 1 - p_y(x) + weight TV(x) from the attacker's mean image, y the most probable
    answer. It finds what a class looks like, not who sent the image: all targets of a class get the
    same picture.

    Args:
        name, needs, observes: See `Attack`.
        steps: Of the descent at budget 1.
        rate: Step size.
        weight: Of the total variation, 0 or more.

    References:
        Fredrikson et al., CCS 2015, algorithm 1.
    """

    name: str = "mi-face"
    needs: frozenset[str] = frozenset({LOGITS})
    observes: str = "private-logits"
    steps: int = 5000
    rate: float = 0.1
    weight: float = 0.1

    def reconstruct(
        self,
        observation: Observation,
        auxiliary: Images,
        observed: Float[Tensor, "T F"],
        budget: float,
        generator: torch.Generator,
        progress: Progress | None = None,
    ) -> Float[Tensor, "T C H W"]:
        """Reconstruct its class's picture per answer; see `Attack.reconstruct`."""
        if not isinstance(observation, ObservationLogits):
            raise make_refusal(observation, LOGITS)
        classes, class_of_target = torch.unique(observed.argmax(1), return_inverse=True)
        rows = torch.arange(len(classes))
        images = auxiliary.x.mean(0).repeat(len(classes), 1, 1, 1)
        steps = max(1, round(self.steps * budget))
        for step in range(1, steps + 1):
            images.requires_grad_()
            probability = observation.logits(images).softmax(1)[rows, classes]
            loss = 1 - probability + self.weight * total_variation(images)
            (slope,) = torch.autograd.grad(loss.sum(), images)
            images = (images - self.rate * slope).detach().clamp(0, 1)
            least = float(probability.detach().min())
            report_progress(progress, "step", step, steps, detail=f"sure to {least:.3f} or more")
        return images[class_of_target]
