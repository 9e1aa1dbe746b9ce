"""Regression and search in one: start at a decoder's image, stay near it, fit the message."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import product

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fedcel.attacks.attacker import Attacker, BaseAttack, Reconstructions
from fedcel.attacks.averaging import move_to_device
from fedcel.attacks.inversion_training import (
    DEFAULT_EFFORT,
    AttackerImages,
    Effort,
    apply_network,
    train_inverter,
)
from fedcel.attacks.kernel_ridge import (
    MAX_IMAGES,
    USUAL_ROWS,
    choose_regression,
    count_rows,
    solve_regression,
)
from fedcel.attacks.pixel_descent import DescentSteps, PixelLoss, descend_pixels
from fedcel.attacks.rmle import MAX_TUNING_IMAGES, penalised_misfit
from fedcel.leakage import MEAN, ObservationMean, make_refusal

DEFAULT_STEPS = DescentSteps(300, 0.01)
Inverter = Callable[[Float[Tensor, "N F"]], Float[Tensor, "N C H W"]]
"""Images from messages."""


@dataclass(frozen=True)
class HybridInversion(BaseAttack):
    """Search the image that fits the message, from a decoder's image and near it.

    It minimises the misfit of x to z~ + tv TV(x) + mu mean (x - D(z~))^2 from D(z~). D is the
    trained decoder, the one in closed form (`kernel-ridge`) or the mean of both. That, tv and mu
    are those which rebuild best the attacker's images that D was not trained on; where D alone
    does, under much noise, its image stays.

    Args:
        name, needs, observes: See `Attack`.
        effort: How the decoder is trained.
        steps: Steps of the descent at budget 1.
        weights: Tried for tv, 0 or more.
        ties: Tried for mu, above 0.

    References:
        He et al., ACSAC 2019 (initialised search), with the decoder as the prior's mean.
    """

    name: str = "hybrid-inversion"
    needs: frozenset[str] = frozenset({MEAN})
    observes: str = "smashed-data"
    effort: Effort = DEFAULT_EFFORT
    steps: DescentSteps = DEFAULT_STEPS
    weights: tuple[float, ...] = (0.0, 0.01, 0.1)
    ties: tuple[float, ...] = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)

    def invert(self, attacker: Attacker, observed: Float[Tensor, "T F"]) -> Reconstructions:
        """Return one image per message."""
        observation = attacker.observation
        if not isinstance(observation, ObservationMean):
            raise make_refusal(observation, MEAN)
        net, images = train_inverter(attacker, self.effort)
        steps = self.steps.scaled(attacker.budget)
        moved, device = move_to_device(observation)
        tuning_images = images.held_out[:MAX_TUNING_IMAGES]
        tuning_observed = observation.sample(tuning_images, attacker.generator).to(device)
        tuning_images = tuning_images.to(device)
        pairs = torch.tensor(list(product(self.weights, self.ties)))
        tv, mu = pairs.to(device).repeat_interleave(len(tuning_images), 0).T
        invert = self.choose_inverter(attacker, net, images)
        tuning_start = invert(tuning_observed)
        starts = tuning_start.repeat(len(pairs), 1, 1, 1)
        misfit = penalised_misfit(moved, tuning_observed.repeat(len(pairs), 1), tv)
        rebuilt = descend_pixels(add_proximal_term(misfit, starts, mu), starts, steps)
        errors = (rebuilt - tuning_images.repeat(len(pairs), 1, 1, 1)).square().flatten(1).mean(1)
        lowest, best = errors.view(len(pairs), -1).mean(1).nan_to_num(torch.inf).min(0)
        observed = observed.to(device)
        start = invert(observed)
        if lowest >= (tuning_start - tuning_images).square().mean():
            return start.cpu()
        best_tv, best_mu = pairs[int(best)].tolist()
        loss = add_proximal_term(penalised_misfit(moved, observed, best_tv), start, best_mu)
        return descend_pixels(loss, start, steps, attacker).cpu()

    def choose_inverter(
        self, attacker: Attacker, net: nn.Module, images: AttackerImages
    ) -> Inverter:
        """Return D: the network, a regression on the same images, or their mean."""
        factor = attacker.budget ** (1 / 3)
        training = images.training[: max(2, round(MAX_IMAGES * factor))]
        rows = count_rows(min(len(images.training), MAX_IMAGES), USUAL_ROWS, factor)
        learned = choose_regression(
            attacker, training, images.held_out, rows=rows, repeats=self.effort.repeats
        )
        regression = solve_regression(learned.choice.kernel, learned.training)
        shape = images.held_out.shape[1:]

        def regress(z: Float[Tensor, "N F"]) -> Float[Tensor, "N C H W"]:
            projected = regression.project(z.double().cpu())
            return regression.rebuild(projected, learned.choice.penalty).to(z).view(-1, *shape)

        def average(z: Float[Tensor, "N F"]) -> Float[Tensor, "N C H W"]:
            return (apply_network(net, z) + regress(z)) / 2

        def held_out_error(invert: Inverter) -> float:
            rebuilt = invert(learned.held_out.z.float()).flatten(1)
            return float((rebuilt - learned.held_out.x).square().mean())

        inverters: list[Inverter] = [partial(apply_network, net), regress, average]
        return min(inverters, key=held_out_error)


def add_proximal_term(
    loss: PixelLoss, centre: Float[Tensor, "N C H W"], mu: float | Float[Tensor, " N"]
) -> PixelLoss:
    """Return the loss plus mu times each image's mean squared distance from its centre."""

    def proximal_loss(images: Float[Tensor, "N C H W"]) -> Float[Tensor, " N"]:
        return loss(images) + mu * (images - centre).square().flatten(1).mean(1)

    return proximal_loss
