"""Posterior mean of an image given its message, the encoder linearised again at each estimate."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from math import prod
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from fedcel.attacks.attack import Attacker, BaseAttack, OtherClasses, Rebuild, Reconstructions
from fedcel.attacks.decoder import split_held_out
from fedcel.attacks.kernel_ridge import KernelRidge
from fedcel.errors import DataError
from fedcel.leakage import (
    MEAN,
    ImagePrior,
    LocalChannel,
    ObservationMean,
    check_jacobian_size,
    fit_to_some,
    ready_encoder,
)
from fedcel.nets import Encoder, call_encoder

MAX_TUNING_IMAGES, MAX_TUNING_LARGE = 64, 16  # on which start, factor and steps are chosen
TUNING_DRAWS = 2  # messages of each
SMALL_IMAGE = 4096  # values of an image that is small: of larger ones steps take minutes
VALUES_AT_ONCE = 2**22  # values of images, or of their Jacobians, in memory
MAX_NOISE_IMAGES = 256  # that the noise is measured on
MAX_CLASS_VALUES = 2**13  # values of all class means up to which each class is a start
LEAST_NOISE = 1e-3  # as a share of the deviation of messages
STEP_LENGTHS = (1.0, 0.5, 0.25, 0.125)  # tried as the share of a step that is taken


class Estimate(NamedTuple):
    """Estimates of images, from each of K prior means.

    Attributes:
        images: (T, K, ...), in float64.
        nats: -log p(image, message) under each prior, up to a constant, (T, K).
    """

    images: Float[Tensor, "T K *shape"]
    nats: Float[Tensor, "T K"]

    def to_images(self) -> Float[Tensor, "T *shape"]:
        """Average over the priors by their probabilities given the message; in [0, 1], float32."""
        mean = torch.einsum("tk,tk...->t...", (-self.nats).softmax(1), self.images)
        return mean.clamp(0, 1).float()


def relinearise(
    encoder: Encoder,
    observed: Float[Tensor, "T D"],
    means: Float[Tensor, "T K *shape"],
    *,
    prior: ImagePrior,
    noise: Float[Tensor, " D"],
    steps: int,
) -> Iterator[Estimate]:
    """Yield the most likely image under each of K Gaussian priors: the means, then after each step.

    A step is the posterior mean of the encoder linearised at the estimate. The share of it is taken
    that makes the image most likely, and none where no share does. The encoder gives features, or
    their mean after dropout, with a gradient; the priors have one covariance.

    References:
        Bell and Cathey, IEEE Transactions on Automatic Control 1993: the iterated Kalman filter is
        a Gauss-Newton method.
    """
    targets, count = means.shape[:2]
    centres = means.double().flatten(0, 1)
    messages = observed.repeat_interleave(count, 0)
    function, dtype = ready_encoder(encoder, means[:1, 0].to(observed))
    precisions = prior.variances.reciprocal().where(prior.variances > 0, 0.0)

    @torch.no_grad()
    def compute_nats(images: Float[Tensor, "N *shape"]) -> Float[Tensor, " N"]:
        gap = (messages - call_encoder(function, images.to(dtype))).double() / noise.double()
        deviations = prior.to_coefficients(images - centres).square() * precisions
        return (gap.square().sum(1) + deviations.sum(1)) / 2

    def part(images: Tensor, nats: Tensor) -> Estimate:
        return Estimate(images.reshape(means.shape), nats.view(targets, count))

    rows = max(1, VALUES_AT_ONCE // (centres[0].numel() * messages.shape[1]))
    images, nats = centres, compute_nats(centres)
    yield part(images, nats)
    for _ in range(steps):
        pieces = (torch.split(stack, rows) for stack in (images, images - centres, messages))
        changes = [
            LocalChannel(function, points.to(dtype), noise=noise).solve(sent, offsets, prior)
            for points, offsets, sent in zip(*pieces, strict=True)
        ]
        goal = centres + prior.from_coefficients(torch.cat(changes))
        before = images
        for length in STEP_LENGTHS:
            tried = before + length * (goal - before)
            tried_nats = compute_nats(tried)
            is_better = tried_nats < nats
            images = tried.where(is_better.view(-1, *[1] * len(prior.shape)), images)
            nats = tried_nats.where(is_better, nats)
        yield part(images, nats)


def measure_noise(
    observation: ObservationMean, images: Float[Tensor, "A C H W"], generator: torch.Generator
) -> Float[Tensor, " F"]:
    """Measure the standard deviation of each value's noise, on one message of each image.

    It is a thousandth of the messages' own deviation at least, also of messages without noise.
    """
    images = images[:MAX_NOISE_IMAGES]
    rows = max(1, VALUES_AT_ONCE // images[0].numel())
    with torch.no_grad():
        mean = torch.cat([observation.mean(part) for part in torch.split(images, rows)])
    noise = (observation.sample(images, generator) - mean).square().mean(0).sqrt()
    return noise.clamp_min(LEAST_NOISE * float(mean.var(0).mean().sqrt()))


class Knowledge(NamedTuple):
    """Law of images, and a guess at the image behind a message, learned from own images."""

    prior: ImagePrior
    guess: Rebuild

    def list_starts(self, observed: Float[Tensor, "T F"]) -> list[Float[Tensor, "T K C H W"]]:
        """List alternatives of prior means: the guess, and the means of all classes if small."""
        means = self.prior.means
        classes = [means.expand(len(observed), *means.shape)] * (means.numel() <= MAX_CLASS_VALUES)
        return [self.guess(observed)[:, None], *classes]


def learn_images(attacker: Attacker) -> Knowledge:
    """Fit the prior and the guess to the attacker's images; DataError where they are too few.

    Labels are left out where they are of other classes than the targets', or of one image each.
    """
    x, y = attacker.auxiliary
    seed = int(torch.randint(2**31, (), generator=attacker.generator))
    is_of_targets = not isinstance(attacker.auxiliary, OtherClasses)
    prior = fit_to_some(x, y, seed) if is_of_targets else None
    prior = prior or fit_to_some(x, None, seed)
    if prior is None:
        raise DataError(
            f"the attacker has {len(x)} images to learn from, which are too few or all alike; "
            "raise data.auxiliary"
        )
    return Knowledge(prior, KernelRidge().learn(attacker))


def search_images(
    observation: ObservationMean,
    knowledge: Knowledge,
    observed: Float[Tensor, "T F"],
    start: int,
    *,
    noise: Float[Tensor, " F"],
    steps: int,
    count_steps: Callable[[int, int], Iterator[int]],
) -> list[Reconstructions]:
    """Estimate the images behind messages: at the start, and after each step.

    `count_steps` takes a number of images and of their steps, and counts those that are taken.
    """
    values = min(knowledge.prior.means.numel(), MAX_CLASS_VALUES)
    values = max(values, prod(knowledge.prior.shape))  # the most that a start takes
    paths = []
    for part in torch.split(observed, max(1, VALUES_AT_ONCE // values)):
        path = relinearise(
            observation.mean,
            part,
            knowledge.list_starts(part)[start],
            prior=knowledge.prior,
            noise=noise,
            steps=steps,
        )
        images = [next(path).to_images()]
        images += [next(path).to_images() for _ in count_steps(len(part), steps)]
        paths.append(images + images[-1:] * (steps + 1 - len(images)))
    return [torch.cat(images) for images in zip(*paths, strict=True)]


class GaussNewton(BaseAttack):
    """Posterior mean of the image, for images that are Gaussian within classes.

    The encoder is linearised at a prior mean, then at the estimate, which moves while that makes it
    more likely. The prior mean is the guess of `kernel-ridge` or, of small images, that of each
    class, whose estimates are averaged by their probabilities. What a linear encoder does not
    explain counts as noise. The start, the factor by which the noise is raised and the number of
    linearisations are those that rebuild best the attacker's own images, each seen through fresh
    noise. From class means it is exact for a linear encoder and such images.

    Raises:
        NetError: Messages and images have too many values for Jacobians.

    References:
        Kay, Estimation Theory, 1993, theorem 10.3: the posterior mean of a linear model.
    """

    name = "gauss-newton"
    needs = frozenset({MEAN})
    steps = 3  # linearisations of small images, at budget 1; of large ones 1
    factors = (1.0, 2.0, 4.0)

    def invert(self, attacker: Attacker, observed: Float[Tensor, "T F"]) -> Reconstructions:
        """Return one image in [0, 1] per message."""
        observation, auxiliary = attacker.observation, attacker.auxiliary
        assert isinstance(observation, ObservationMean)
        x, generator = auxiliary.x, attacker.generator
        check_jacobian_size(observed.shape[1], x[0].numel())
        noise = measure_noise(observation, x, generator)
        silent = replace(attacker, progress=None)
        training, held_out = split_held_out(torch.arange(len(x)), generator)
        is_small = x[0].numel() <= SMALL_IMAGE
        steps = attacker.scale(self.steps if is_small else 1)
        tuning = x[held_out[: MAX_TUNING_IMAGES if is_small else MAX_TUNING_LARGE]]
        tuning = tuning.repeat(TUNING_DRAWS, 1, 1, 1)
        tuning_observed = observation.sample(tuning, generator)
        part = auxiliary._replace(x=x[training], y=auxiliary.y[training])
        knowledge = learn_images(replace(silent, auxiliary=part))
        starts = len(knowledge.list_starts(tuning_observed[:1]))
        choices = list(product(range(starts), self.factors))
        total = (len(choices) * len(tuning) + len(observed)) * steps
        done = 0

        def count_steps(count: int, number: int) -> Iterator[int]:
            nonlocal done
            work = count * number
            yield from attacker.clock.steps(number, float(count), work / max(work, total - done))
            done += count * steps
            if attacker.progress:
                attacker.progress(f"step {done}/{total}, the noise taken {factor:g} times")

        trials = []  # least error first, then position among the starts, factor and steps
        for start, factor in choices:
            path = search_images(
                observation,
                knowledge,
                tuning_observed,
                start,
                noise=factor * noise,
                steps=steps,
                count_steps=count_steps,
            )
            errors = [float((images - tuning).square().mean()) for images in path]
            trials += [(error, start, factor, step) for step, error in enumerate(errors)]
        _, start, factor, chosen_steps = min(trials)
        return search_images(
            observation,
            learn_images(silent),
            observed,
            start,
            noise=factor * noise,
            steps=chosen_steps,
            count_steps=count_steps,
        )[-1]
