"""Regularised maximum likelihood: search the image that explains the message."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from fedcel.attacks.averaging import move_to_device
from fedcel.attacks.pixel_descent import DescentSteps, PixelLoss, descend_pixels, total_variation
from fedcel.attacks.protocol import Progress
from fedcel.data import Images
from fedcel.leakage import MEAN, Observation, ObservationMean, ObservationMisfit, make_refusal

DEFAULT_STEPS = DescentSteps(2000, 0.02)
MAX_TUNING_IMAGES = 64  # of the attacker's own, on which he chooses the weight


@dataclass(frozen=True)
class RMLE:
    """Search the image whose message fits what was seen, by descent on its pixels.

    It minimises the misfit of x to z~ + tv TV(x), all targets at once. The weight tv and the share
    of the steps that is taken are those which rebuild the attacker's own images best, each seen
    through fresh noise as the targets were: to fit a noisy message to the last is to fit its noise.
    Where the source starts at grey, this starts at the mean of the own images, which is nearer.

    Args:
        name, needs, observes: See `Attack`.
        steps: Of the descent at budget 1.
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
        if not isinstance(observation, ObservationMean):
            raise make_refusal(observation, MEAN)
        steps = self.steps.scaled(budget)
        order = torch.randperm(len(auxiliary.x), generator=generator)[:MAX_TUNING_IMAGES]
        own = auxiliary.x[order]
        own_observed = observation.sample(own, generator)
        observation, device = move_to_device(observation)
        centre = auxiliary.x.mean(0).to(device)
        tv, share = self.tune(
            observation,
            own.to(device),
            own_observed.to(device),
            centre=centre,
            steps=steps,
            progress=progress,
        )
        start = centre.repeat(len(observed), 1, 1, 1)
        loss = penalised_misfit(observation, observed.to(device), tv)
        return descend_pixels(loss, start, steps.scaled(share), progress).cpu()

    def tune(
        self,
        observation: ObservationMean,
        own: Float[Tensor, "N C H W"],
        own_observed: Float[Tensor, "N F"],
        *,
        centre: Float[Tensor, "C H W"],
        steps: DescentSteps,
        progress: Progress | None,
    ) -> tuple[float, float]:
        """Return the weight and the share of the steps with the lowest MSE on own images."""
        count = len(self.weights)
        tv = torch.tensor(self.weights, device=own.device).repeat_interleave(len(own))
        start = centre.repeat(len(tv), 1, 1, 1)
        loss = penalised_misfit(observation, own_observed.repeat(count, 1), tv)
        errors = []
        for share in self.shares:
            rebuilt = descend_pixels(loss, start, steps.scaled(share), progress)
            gap = rebuilt - own.repeat(count, 1, 1, 1)
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
