"""Search images by descent on their pixels: the images that explain what was seen."""

import time
from collections.abc import Callable
from functools import partial
from itertools import product
from math import cos, pi
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from fedcel.attacks.attack import Attacker, BaseAttack, Rebuild, Reconstructions
from fedcel.attacks.attack_clock import AttackClock, check_memory
from fedcel.attacks.averaging import move_to_device
from fedcel.attacks.decoder import Inverter, apply_network, train_inverter
from fedcel.attacks.kernel_ridge import (
    MAX_IMAGES,
    USUAL_ROWS,
    choose_regression,
    count_rows,
)
from fedcel.leakage import (
    MEAN,
    ObservationMean,
    ObservationMisfit,
)
from fedcel.nets import CPU
from fedcel.torch_state import use_full_precision

PixelLoss = Callable[[Float[Tensor, "N C H W"]], Float[Tensor, " N"]]
"""One number per image."""


class DescentSteps(NamedTuple):
    """Number of Adam's steps, and the size of the first, falling to 0 as a cosine."""

    number: int
    rate: float

    def scaled(self, factor: float) -> "DescentSteps":
        """Return as many times the steps, at least one."""
        return self._replace(number=max(1, round(self.number * factor)))


@use_full_precision()
def descend_pixels(
    loss: PixelLoss,
    start: Float[Tensor, "N C H W"],
    steps: DescentSteps,
    attacker: Attacker | None = None,
    *,
    share: float = 1.0,
) -> Float[Tensor, "N C H W"]:
    """Return images in [0, 1] near a minimum of each row's loss, clipped after each step.

    The attacker, where there is one, reports the steps, and its clock may end them; `share` is as
    of `AttackClock.steps`.

    Rows do not mix: Adam's step with the largest of its second moments (Reddi et al., ICLR 2018,
    algorithm 2) is pixel by pixel, and the losses are summed.
    """
    images = start.detach().clone().requires_grad_()
    adam = torch.optim.Adam([images], steps.rate, amsgrad=True)
    clock = attacker.clock if attacker else AttackClock()
    for step in clock.steps(steps.number, share=share):
        for group in adam.param_groups:
            group["lr"] = steps.rate * (1 + cos(pi * (step - 1) / steps.number)) / 2
        losses = loss(images)
        (images.grad,) = torch.autograd.grad(losses.sum(), images)
        adam.step()
        with torch.no_grad():
            images.clamp_(0, 1)
        if attacker and attacker.progress:  # to read a loss is to wait for the device
            mean_loss = float(losses.detach().mean())
            attacker.report("step", step, steps.number, f"loss {mean_loss:.4g}")
    return images.detach()


def time_step(loss: PixelLoss, start: Float[Tensor, "N C H W"], steps: DescentSteps) -> float:
    """Return the seconds of one step from these images, the second one."""
    begin = 0.0
    for _ in range(2):
        begin = time.monotonic()
        descend_pixels(loss, start, steps._replace(number=1))
    return time.monotonic() - begin


def total_variation(images: Float[Tensor, "N C H W"]) -> Float[Tensor, " N"]:
    """Return the mean absolute difference of neighbours, down plus across; Rudin et al., 1992.

    0 along a side of one pixel.
    """
    down = (images[:, :, 1:] - images[:, :, :-1]).abs().flatten(1)
    across = (images[:, :, :, 1:] - images[:, :, :, :-1]).abs().flatten(1)
    return down.sum(1) / max(1, down.shape[1]) + across.sum(1) / max(1, across.shape[1])


DECODER_SHARE, REGRESSION_SHARE = 0.5, 0.1  # of the time of `HybridInversion` that is left
EXPECTED_SHARE = 0.2  # of the steps of `RMLE` that are the best, before that is known
MAX_TUNING_IMAGES = 64  # of the attacker's own, on which the weight is chosen


class RMLE(BaseAttack):
    """Search the image whose message fits what was seen, by descent on its pixels.

    It minimises the misfit of x to z~ + tv TV(x), all targets at once. The weight tv and the share
    of the steps that is taken are those which rebuild the attacker's own images best, each seen
    through fresh noise as the targets were: to fit a noisy message to the last is to fit its noise.
    Where the source starts at grey, this starts at the mean of the own images, which is nearer.

    References:
        He et al., ACSAC 2019, algorithm 1 and equation 4.
    """

    name = "rmle"
    needs = frozenset({MEAN})
    steps = DescentSteps(2000, 0.02)
    weights: tuple[float, ...] = (0.0, 0.01, 0.1, 1.0)
    shares: tuple[float, ...] = (0.01, 0.05, 0.2, 1.0)

    def invert(self, attacker: Attacker, observed: Float[Tensor, "T F"]) -> Reconstructions:
        """Return one image in [0, 1] per message."""
        observation, x = attacker.observation, attacker.auxiliary.x
        assert isinstance(observation, ObservationMean)
        tuning_images = x[torch.randperm(len(x), generator=attacker.generator)[:MAX_TUNING_IMAGES]]
        tuning_observed = observation.sample(tuning_images, attacker.generator)
        moved, device = move_to_device(observation)
        steps = self.steps.scaled(attacker.budget)
        centre = x.mean(0).to(device)

        def descend(
            observed: Float[Tensor, "N F"],
            tv: float | Float[Tensor, " N"],
            share: float,
            later: float = 0.0,
        ) -> Float[Tensor, "N C H W"]:
            loss = penalised_misfit(moved, observed, tv)
            start = centre.repeat(len(observed), 1, 1, 1)
            work = share * len(observed)
            part = work / (work + later)
            return descend_pixels(loss, start, steps.scaled(share), attacker, share=part)

        tuning_images, tuning_observed = tuning_images.to(device), tuning_observed.to(device)
        count = len(self.weights)
        tried = torch.tensor(self.weights, device=device).repeat_interleave(len(tuning_images))
        errors = []
        check_graph_memory(moved, centre, max(len(tried), len(observed)))
        expected = EXPECTED_SHARE * len(observed)
        for number, share in enumerate(self.shares, 1):
            later = sum(self.shares[number:]) * len(tried) + expected
            rebuilt = descend(tuning_observed.repeat(count, 1), tried, share, later)
            gap = rebuilt - tuning_images.repeat(count, 1, 1, 1)
            errors.append(gap.square().view(count, -1).mean(1))
        best = int(torch.stack(errors, 1).nan_to_num(torch.inf).argmin())
        tv, share = list(product(self.weights, self.shares))[best]
        return descend(observed.to(device), tv, share).cpu()


def check_graph_memory(
    observation: ObservationMean, image: Float[Tensor, "C H W"], rows: int
) -> None:
    """Refuse a descent on so many images at once that memory is too small for; SizeError."""
    if image.device != CPU:
        return

    def measure(count: int) -> int:
        sizes: dict[int, int] = {}

        def note(saved: Tensor) -> Tensor:
            storage = saved.untyped_storage()
            sizes[storage.data_ptr()] = storage.nbytes()
            return saved

        images = image.repeat(count, 1, 1, 1).requires_grad_()
        with torch.autograd.graph.saved_tensors_hooks(note, lambda saved: saved):
            output = observation.mean(images)
        del output  # until now it holds what was saved
        return sum(sizes.values())

    check_memory(float(rows * (measure(2) - measure(1))))  # without parameters, which rows share


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


class HybridInversion(BaseAttack):
    """Search the image that fits the message, from a decoder's image and near it.

    It minimises the misfit of x to z~ + tv TV(x) + mu mean (x - D(z~))^2 from D(z~). D is the
    trained decoder, the one in closed form (`kernel-ridge`) or the mean of both. That, tv and mu
    are those which rebuild best the attacker's images that D was not trained on; where D
    rebuilds better without a search, under much noise, its image stays.

    References:
        He et al., ACSAC 2019 (initialised search), with the decoder as the prior's mean.
    """

    name = "hybrid-inversion"
    needs = frozenset({MEAN})
    steps = DescentSteps(300, 0.01)
    weights = (0.0, 0.01, 0.1)
    ties: tuple[float, ...] = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)

    def invert(self, attacker: Attacker, observed: Float[Tensor, "T F"]) -> Reconstructions:
        """Return one image per message."""
        observation = attacker.observation
        assert isinstance(observation, ObservationMean)
        steps = self.steps.scaled(attacker.budget)
        moved, device = move_to_device(observation)
        images = attacker.auxiliary.x[: min(MAX_TUNING_IMAGES, len(observed))].to(device)
        check_graph_memory(moved, images[0], len(observed))
        first = penalised_misfit(moved, observed[: len(images)].to(device), self.weights[-1])
        tuned = MAX_TUNING_IMAGES * len(self.weights) * len(self.ties)
        pace = time_step(first, images, steps) / len(images)
        attacker.clock.expect(pace * steps.number * (tuned + len(observed)))
        trained = train_inverter(attacker, share=DECODER_SHARE)
        tuning_images = trained.held_out[:MAX_TUNING_IMAGES]
        tuning_observed = observation.sample(tuning_images, attacker.generator).to(device)
        tuning_images = tuning_images.to(device)
        pairs = torch.tensor(list(product(self.weights, self.ties)))
        tv, mu = pairs.to(device).repeat_interleave(len(tuning_images), 0).T
        invert = self.choose_inverter(attacker, trained)
        attacker.clock.expect(None)
        tuning_start = invert(tuning_observed)
        starts = tuning_start.repeat(len(pairs), 1, 1, 1)
        misfit = penalised_misfit(moved, tuning_observed.repeat(len(pairs), 1), tv)
        check_graph_memory(moved, tuning_images[0], len(starts))
        share = len(starts) / (len(starts) + len(observed))
        loss = add_proximal_term(misfit, starts, mu)
        rebuilt = descend_pixels(loss, starts, steps, attacker, share=share)
        errors = (rebuilt - tuning_images.repeat(len(pairs), 1, 1, 1)).square().flatten(1).mean(1)
        lowest, best = errors.view(len(pairs), -1).mean(1).nan_to_num(torch.inf).min(0)
        observed = observed.to(device)
        start = invert(observed)
        if lowest >= (tuning_start - tuning_images).square().mean():
            return start.cpu()
        best_tv, best_mu = pairs[int(best)].tolist()
        loss = add_proximal_term(penalised_misfit(moved, observed, best_tv), start, best_mu)
        return descend_pixels(loss, start, steps, attacker).cpu()

    def choose_inverter(self, attacker: Attacker, trained: Inverter) -> Rebuild:
        """Return D: the network, a regression on the same images, or their mean."""
        factor = attacker.budget ** (1 / 3)
        training = trained.training[: max(2, round(MAX_IMAGES * factor))]
        rows = count_rows(min(len(trained.training), MAX_IMAGES), USUAL_ROWS, factor)
        learned = choose_regression(
            attacker, training, trained.held_out, rows=rows, share=REGRESSION_SHARE
        )
        regress = learned.fit(learned.training, trained.held_out.shape[1:])
        held_out_images = learned.held_out.x[learned.held_out.place]

        def average(z: Float[Tensor, "N F"]) -> Float[Tensor, "N C H W"]:
            return (apply_network(trained.net, z) + regress(z)) / 2

        def held_out_error(invert: Rebuild) -> float:
            rebuilt = invert(learned.held_out.z.float()).flatten(1)
            return float((rebuilt - held_out_images).square().mean())

        inverters: list[Rebuild] = [partial(apply_network, trained.net), regress, average]
        return min(inverters, key=held_out_error)


def add_proximal_term(
    loss: PixelLoss, centre: Float[Tensor, "N C H W"], mu: float | Float[Tensor, " N"]
) -> PixelLoss:
    """Return the loss plus mu times each image's mean squared distance from its centre."""

    def proximal_loss(images: Float[Tensor, "N C H W"]) -> Float[Tensor, " N"]:
        return loss(images) + mu * (images - centre).square().flatten(1).mean(1)

    return proximal_loss
