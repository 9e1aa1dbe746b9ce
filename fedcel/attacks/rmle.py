"""Regularised maximum likelihood: search the image that explains the message."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from fedcel.attacks.attacker import Attacker, BaseAttack, Reconstructions
from fedcel.attacks.averaging import move_to_device
from fedcel.attacks.pixel_descent import DescentSteps, PixelLoss, descend_pixels, total_variation
from fedcel.leakage import MEAN, ObservationMean, ObservationMisfit, make_refusal

DEFAULT_STEPS = DescentSteps(2000, 0.02)
MAX_TUNING_IMAGES = 64  # of the attacker's own, on which the weight is chosen


@dataclass(frozen=True)
class RMLE(BaseAttack):
    """Search the image whose message fits what was seen, by descent on its pixels.

    It minimises the misfit of x to z~ + tv TV(x), all targets at once. The weight tv and the share
    of the steps that is taken are those which rebuild the attacker's own images best, each seen
    through fresh noise as the targets were: to fit a noisy message to the last is to fit its noise.
    Where the source starts at grey, this starts at the mean of the own images, which is nearer.

    Args:
        name, needs, observes: See `Attack`.
        steps: Steps of the descent at budget 1.
        weights: Tried for tv, 0 or more.
        shares: Tried for the share of the steps, in (0, 1].

    References:
        He et al., ACSAC 2019, algorithm 1 and equation 4.
    """

    name: str = "rmle"
    needs: frozenset[str] = frozenset({MEAN})
    observes: str = "smashed-data"
    steps: DescentSteps = DEFAULT_STEPS
    weights: tuple[float, ...] = (0.0, 0.01, 0.1, 1.0)
    shares: tuple[float, ...] = (0.01, 0.05, 0.2, 1.0)

    def invert(self, attacker: Attacker, observed: Float[Tensor, "T F"]) -> Reconstructions:
        """Return one image in [0, 1] per message."""
        observation, x = attacker.observation, attacker.auxiliary.x
        if not isinstance(observation, ObservationMean):
            raise make_refusal(observation, MEAN)
        tuning_images = x[torch.randperm(len(x), generator=attacker.generator)[:MAX_TUNING_IMAGES]]
        tuning_observed = observation.sample(tuning_images, attacker.generator)
        moved, device = move_to_device(observation)
        steps = self.steps.scaled(attacker.budget)
        centre = x.mean(0).to(device)

        def descend(
            observed: Float[Tensor, "N F"], tv: float | Float[Tensor, " N"], share: float
        ) -> Float[Tensor, "N C H W"]:
            loss = penalised_misfit(moved, observed, tv)
            start = centre.repeat(len(observed), 1, 1, 1)
            return descend_pixels(loss, start, steps.scaled(share), attacker)

        tv, share = self.tune(tuning_images.to(device), tuning_observed.to(device), descend)
        return descend(observed.to(device), tv, share).cpu()

    def tune(
        self,
        tuning_images: Float[Tensor, "N C H W"],
        tuning_observed: Float[Tensor, "N F"],
        descend: Callable[[Tensor, Tensor, float], Tensor],
    ) -> tuple[float, float]:
        """Return the weight and the share of the steps with the lowest MSE on own images."""
        count = len(self.weights)
        weights = torch.tensor(self.weights, device=tuning_images.device)
        tv = weights.repeat_interleave(len(tuning_images))
        errors = []
        for share in self.shares:
            rebuilt = descend(tuning_observed.repeat(count, 1), tv, share)
            gap = rebuilt - tuning_images.repeat(count, 1, 1, 1)
            errors.append(gap.square().view(count, -1).mean(1))
        best = int(torch.stack(errors, 1).nan_to_num(torch.inf).argmin())
        return self.weights[best // len(self.shares)], self.shares[best % len(self.shares)]


def penalised_misfit(
    observation: ObservationMean, observed: Float[Tensor, "N F"], tv: float | Float[Tensor, " N"]
) -> PixelLoss:
    """Return the misfit + tv TV(x) of each image, tv one or one a row.

    The misfit is that of the observation's law where it offers one, else mean (E[z~|x] - z~)^2.
    """

    def squared_gap(
        images: Float[Tensor, "N C H W"], observed: Float[Tensor, "N F"]
    ) -> Float[Tensor, " N"]:
        return (observation.mean(images) - observed).square().mean(1)

    misfit = observation.misfit if isinstance(observation, ObservationMisfit) else squared_gap
    return lambda images: misfit(images, observed) + tv * total_variation(images)
