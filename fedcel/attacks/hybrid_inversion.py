"""Regression and search in one: start at a decoder's image, stay near it, fit the message.

After the initialised search of He et al., ACSAC 2019, with the decoder as the prior's mean.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import product

import torch
from jaxtyping import Float
from torch import Tensor

from fedcel.attacks.averaging import move_to_device
from fedcel.attacks.decoder import pass_through
from fedcel.attacks.inversion_training import DEFAULT, Effort, Fitted, apply_network, train_inverter
from fedcel.attacks.kernel_ridge import IMAGES, ROWS, choose_regression, count_rows, fit_regression
from fedcel.attacks.pixel_descent import Loss, Steps, descend_pixels
from fedcel.attacks.protocol import Progress
from fedcel.attacks.rmle import TUNED_ON, objective
from fedcel.data import Images
from fedcel.leakage import MEAN, Observation, ObservationMean, make_refusal

STEPS = Steps(300, 0.01)
Start = Callable[[Float[Tensor, "N F"]], Float[Tensor, "N C H W"]]
"""Images from messages."""


@dataclass(frozen=True)
class Hybrid:
    """Minimise the misfit of x to z~ + tv TV(x) + mu mean (x - D(z~))^2 from D(z~).

    D is the trained decoder, the one in closed form (`kernel-ridge`) or the mean of both. That, tv
    and mu are those which rebuild best the attacker's images that D was not trained on; where D
    alone does, under much noise, its image stays.
    """

    name: str = "hybrid-inversion"
    needs: frozenset[str] = frozenset({MEAN})
    observes: str = "smashed-data"
    effort: Effort = DEFAULT
    steps: Steps = STEPS
    weights: tuple[float, ...] = (0.0, 0.01, 0.1)
    """Tried for tv."""
    ties: tuple[float, ...] = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
    """Tried for mu."""

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
        found = train_inverter(
            observation, auxiliary.x, self.effort, pass_through, budget, generator, progress
        )
        steps = self.steps.times(budget)
        own = found.held[:TUNED_ON]
        there, place = move_to_device(observation)
        seen, own = observation.sample(own, generator).to(place), own.to(place)
        pairs = torch.tensor(list(product(self.weights, self.ties)))
        tv, mu = pairs.to(place).repeat_interleave(len(own), 0).T
        start = self.start(observation, found, budget, generator, progress)
        near_own = start(seen)
        guess = near_own.repeat(len(pairs), 1, 1, 1)
        tried = descend_pixels(
            add_proximal_term(objective(there, seen.repeat(len(pairs), 1), tv), guess, mu),
            guess,
            steps,
        )
        errors = (tried - own.repeat(len(pairs), 1, 1, 1)).square().flatten(1).mean(1)
        lowest, which = errors.view(len(pairs), -1).mean(1).nan_to_num(torch.inf).min(0)
        observed = observed.to(place)
        guess = start(observed)
        if lowest >= (near_own - own).square().mean():
            return guess.cpu()
        best, near = pairs[int(which)].tolist()
        loss = add_proximal_term(objective(there, observed, best), guess, near)
        return descend_pixels(loss, guess, steps, progress).cpu()

    def start(
        self,
        observation: Observation,
        found: Fitted,
        budget: float,
        generator: torch.Generator,
        progress: Progress | None,
    ) -> Start:
        """Return D: the network, a regression on the same images, or their mean."""
        times, repeats = budget ** (1 / 3), self.effort.repeats
        known = found.own[: max(2, round(IMAGES * times))]
        rows = count_rows(min(len(found.own), IMAGES), ROWS, times)
        other = choose_regression(
            observation, known, found.held, rows, repeats, generator, progress
        )

        flat = fit_regression(other.choice, other.known)

        def closed(z: Float[Tensor, "N F"]) -> Float[Tensor, "N C H W"]:
            return flat(z.double().cpu()).to(z).view(len(z), *found.held.shape[1:])

        def mean(z: Float[Tensor, "N F"]) -> Float[Tensor, "N C H W"]:
            return (apply_network(found.net, z) + closed(z)) / 2

        def error(start: Start) -> float:
            made = start(other.checks.z.float()).flatten(1)
            return float((made - other.checks.x).square().mean())

        tried: list[Start] = [partial(apply_network, found.net), closed, mean]
        return min(tried, key=error)


def add_proximal_term(
    fits: Loss, centre: Float[Tensor, "N C H W"], mu: float | Float[Tensor, " N"]
) -> Loss:
    """Return the loss plus mu times each image's mean squared distance from its centre."""

    def loss(images: Float[Tensor, "N C H W"]) -> Float[Tensor, " N"]:
        return fits(images) + mu * (images - centre).square().flatten(1).mean(1)

    return loss
