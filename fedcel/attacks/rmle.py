"""Regularised maximum likelihood: search the pixels that give the message.

Source: He et al., ACSAC 2019, algorithm 1 and equation 4.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from fedcel.attacks.averaging import move_to_device
from fedcel.attacks.pixel_descent import Loss, Steps, descend_pixels, total_variation
from fedcel.attacks.protocol import Progress
from fedcel.data import Images
from fedcel.leakage import (
    MEAN,
    Observation,
    ObservationMean,
    ObservationMisfit,
    make_refusal,
)

STEPS = Steps(2000, 0.02)
TUNED_ON = 64  # the attacker's own images on which he chooses the weight, at most


@dataclass(frozen=True)
class RMLE:
    """Minimise the misfit of x to z~ + tv TV(x), all targets at once; see `objective`.

    The weight tv and the share of the steps that is taken are those which rebuild the attacker's
    own images best, each seen through fresh noise as the targets were: to fit a noisy message to
    the last is to fit its noise. Where the source starts at grey, this starts at the mean of the
    own images, which is nearer.
    """

    name: str = "rmle"
    needs: frozenset[str] = frozenset({MEAN})
    observes: str = "smashed-data"
    steps: Steps = STEPS
    weights: tuple[float, ...] = (0.0, 0.01, 0.1, 1.0)
    shares: tuple[float, ...] = (0.01, 0.05, 0.2, 1.0)

    def reconstruct(
        self,
        observation: Observation,
        auxiliary: Images,
        observed: Float[Tensor, "T F"],
        budget: float,
        generator: torch.Generator,
        progress: Progress | None = None,
    ) -> Float[Tensor, "T C H W"]:
        """Return one image in [0, 1] per message; ValueError where E[z~|x] is not granted."""
        if not isinstance(observation, ObservationMean):
            raise make_refusal(observation, MEAN)
        steps, centre = self.steps.times(budget), auxiliary.x.mean(0)
        order = torch.randperm(len(auxiliary.x), generator=generator)[:TUNED_ON]
        own = auxiliary.x[order]
        seen = observation.sample(own, generator)
        there, place = move_to_device(observation)
        own, seen, centre = own.to(place), seen.to(place), centre.to(place)
        tv, share = self.tuned(there, own, seen, centre, steps, progress)
        start = centre.repeat(len(observed), 1, 1, 1)
        loss = objective(there, observed.to(place), tv)
        return descend_pixels(loss, start, steps.times(share), progress).cpu()

    def tuned(
        self,
        observation: ObservationMean,
        own: Float[Tensor, "N C H W"],
        seen: Float[Tensor, "N F"],
        centre: Float[Tensor, "C H W"],
        steps: Steps,
        progress: Progress | None,
    ) -> tuple[float, float]:
        """Return the weight and the share of the steps with the lowest MSE on the own images."""
        count = len(self.weights)
        tv = torch.tensor(self.weights, device=own.device).repeat_interleave(len(own))
        start, many = centre.repeat(len(tv), 1, 1, 1), seen.repeat(count, 1)
        errors = []
        for share in self.shares:
            loss, some = objective(observation, many, tv), steps.times(share)
            tried = descend_pixels(loss, start, some, progress)
            gap = tried - own.repeat(count, 1, 1, 1)
            errors.append(gap.square().view(count, -1).mean(1))
        best = int(torch.stack(errors, 1).nan_to_num(torch.inf).argmin())
        return self.weights[best // len(self.shares)], self.shares[best % len(self.shares)]


def objective(
    observation: ObservationMean, observed: Float[Tensor, "N F"], tv: float | Float[Tensor, " N"]
) -> Loss:
    """Return the misfit + tv TV(x) of each image, tv one or one a row.

    The misfit is that of the observation's law where it offers one, else mean (E[z~|x] - z~)^2.
    """

    def gap(
        images: Float[Tensor, "N C H W"], observed: Float[Tensor, "N F"]
    ) -> Float[Tensor, " N"]:
        return (observation.mean(images) - observed).square().mean(1)

    misfit = observation.misfit if isinstance(observation, ObservationMisfit) else gap
    return lambda images: misfit(images, observed) + tv * total_variation(images)
