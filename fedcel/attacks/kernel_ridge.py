"""Kernel ridge regression from messages to images: a decoder in closed form.

Of few images it makes more than a network does.
"""

import time
from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fedcel.attacks.attack import Attacker, BaseAttack, Rebuild, Reconstructions
from fedcel.attacks.attack_clock import check_memory
from fedcel.attacks.decoder import HELD_OUT_SHARE, make_observer, split_held_out

MAX_IMAGES = 2000  # that are learned from, at budget 1
USUAL_ROWS = 500  # messages that are learned from, where there are fewer images
KERNEL_WIDTHS = (0.5, 2.0, 8.0, 32.0)
"""Widths of the Gaussian kernels, squared, in units of the median squared distance of messages."""
PENALTIES = tuple(10.0**power for power in range(-5, 3))
"""Tried as lambda, in units of the kernel's largest eigenvalue over the number of rows."""
MEDIAN_ROWS = 500  # messages whose distances give the unit of width
HELD_OUT_DRAWS = 2  # messages of each held-out image
EIGEN_OPERATIONS = 10  # of a matrix's eigenvectors, as a multiple of its cubed size
MATRICES, PICTURES = 6, 3  # in memory: of the messages' kernel, and of what is rebuilt
_VALUES_AT_ONCE = 2**23  # of images, in float64
TRIAL_SHARE, LEAST_TRIED = 1 / 2, 1e11  # rows of a trial solution; operations that are worth it


class Pairs(NamedTuple):
    """Messages in float64, and the images behind them, each of which may have several."""

    z: Float[Tensor, "N F"]
    x: Float[Tensor, "n P"]
    place: Int[Tensor, " N"]
    """Place in x of each message's image."""

    def take(self, rows: int) -> "Pairs":
        """Take the first messages."""
        return self._replace(z=self.z[:rows], place=self.place[:rows])


class Kernel(NamedTuple):
    """exp(-|a - b|^2 / width) of messages; without a width the product of centred a and b."""

    centre: Float[Tensor, " F"]
    width: float | None

    def matrix(self, a: Float[Tensor, "N F"], b: Float[Tensor, "M F"]) -> Float[Tensor, "N M"]:
        """Return the kernel of all pairs."""
        if self.width is None:
            return (a - self.centre) @ (b - self.centre).T
        return torch.cdist(a, b).square_().div_(-self.width).exp_()


class Regression(NamedTuple):
    """A kernel solved on pairs (z_i, x_i), once for all penalties lambda.

    The image of a message z is mean + k(z) V (values + lambda)^-1 V'(x - mean): k(z) is the kernel
    of z with all z_i, V and `values` are the eigenvectors and eigenvalues of the kernel of all z_i.
    It is a sum of images with weights, which are computed first: images are large.
    """

    kernel: Kernel
    pairs: Pairs
    values: Float[Tensor, " N"]
    vectors: Float[Tensor, "N N"]

    def project(self, observed: Float[Tensor, "T F"]) -> Float[Tensor, "T N"]:
        """Return k(z) V of messages."""
        return self.kernel.matrix(observed, self.pairs.z) @ self.vectors

    def rebuild(self, projected: Float[Tensor, "T N"], penalty: float) -> Float[Tensor, "T P"]:
        """Return the flat images in [0, 1] of projected messages."""
        _, images, place = self.pairs
        shrunk = projected / (self.values + ridge_penalty(penalty, self.values))
        weights = shrunk @ self.vectors.T
        weights += ((1 - weights.sum(1)) / len(place))[:, None]  # of the mean
        summed = weights.new_zeros(len(weights), len(images)).index_add_(1, place, weights)
        rebuilt = images.new_empty(len(summed), images.shape[1])
        size = max(1, _VALUES_AT_ONCE // (len(images) + len(summed)))
        columns = (torch.split(part, size, 1) for part in (images, rebuilt))
        for pixels, part in zip(*columns, strict=True):
            part.copy_((summed @ pixels.double()).clamp(0, 1))
        return rebuilt


class Learned(NamedTuple):
    """The chosen kernel and penalty, the pairs that they learn from, and those that chose them."""

    kernel: Kernel
    penalty: float
    training: Pairs
    held_out: Pairs

    def fit(self, pairs: Pairs, shape: tuple[int, ...]) -> Rebuild:
        """Return the regression on these pairs, which gives images of this shape (C, H, W)."""
        regression = solve_regression(self.kernel, pairs)

        def rebuild(observed: Float[Tensor, "T F"]) -> Float[Tensor, "T C H W"]:
            projected = regression.project(observed.double().cpu())
            return regression.rebuild(projected, self.penalty).to(observed).view(-1, *shape)

        return rebuild


class KernelRidge(BaseAttack):
    """Rebuild the image of least penalised squared error that is linear in a kernel of the message.

    Kernel and penalty are those that rebuild best a fifth of the attacker's images, seen through
    fresh noise. The effort grows as the cube of `images`, the most that it learns from, and `rows`,
    its messages, of which images have several if they are fewer; a budget's cube root multiplies
    both.

    References:
        Saunders, Gammerman and Vovk, ICML 1998, equation 7; with the linear kernel it is the ridge
        regression of Hoerl and Kennard, 1970.
    """

    name = "kernel-ridge"
    images = MAX_IMAGES
    rows = USUAL_ROWS

    def invert(self, attacker: Attacker, observed: Float[Tensor, "T F"]) -> Reconstructions:
        """Return one image per message."""
        return self.learn(attacker)(observed)

    def learn(self, attacker: Attacker) -> Rebuild:
        """Solve the regression once, for messages that arrive later."""
        x = attacker.auxiliary.x
        factor = attacker.budget ** (1 / 3)
        count = max(2, round(self.images * factor))
        order = torch.randperm(len(x), generator=attacker.generator)[:count]
        images = split_held_out(x[order], attacker.generator)
        usual = max(1, round((1 - HELD_OUT_SHARE) * min(len(x), self.images)))
        rows = count_rows(usual, self.rows, factor)
        learned = choose_regression(attacker, *images, rows=rows)
        training, held_out = learned.training, learned.held_out
        everything = Pairs(
            torch.cat([training.z, held_out.z]),
            torch.cat([training.x, held_out.x]),
            torch.cat([training.place, held_out.place + len(training.x)]),
        )
        return learned.fit(everything, x.shape[1:])


def count_rows(images: int, rows: int, factor: float) -> int:
    """Return the number of training messages: about `rows`, a multiple of `images`, times `factor`.

    At least one message of each image before the factor.
    """
    return max(2, round(factor * images * max(1, rows // images)))


def choose_regression(
    attacker: Attacker,
    training: Float[Tensor, "A C H W"],
    held_out: Float[Tensor, "V C H W"],
    *,
    rows: int,
    share: float = 1.0,
) -> Learned:
    """Return the kernel and penalty for `rows` messages of images, best on those held out.

    `share` is as of `AttackClock.steps`. SizeError where memory is too small.
    """
    messages = rows + HELD_OUT_DRAWS * len(held_out)
    values = PICTURES * HELD_OUT_DRAWS * held_out.numel() + MATRICES * messages**2
    check_memory(float(values * torch.float64.itemsize))
    draws = -(-rows // len(training))
    training_pairs = sample_pairs(attacker, training, draws).take(rows)
    held_out_pairs = sample_pairs(attacker, held_out, HELD_OUT_DRAWS)
    kernels = list_kernels(training_pairs.z)
    rows = len(training_pairs.z)
    seconds = estimate_seconds(kernels, training_pairs, held_out_pairs)
    attacker.clock.tell_estimate(seconds / share)
    choices = []
    for number in attacker.clock.steps(len(kernels), share=share, least=1):
        kernel = kernels[number - 1]
        choices.append((*choose_penalty(kernel, training_pairs, held_out_pairs), kernel))
        detail = f"MSE {choices[-1][0]:.4f} on held images"
        attacker.report("row", number * rows, len(kernels) * rows, detail)
    _, penalty, kernel = min(choices, key=lambda choice: choice[0])
    return Learned(kernel, penalty, training_pairs, held_out_pairs)


def estimate_seconds(kernels: Sequence[Kernel], training: Pairs, held_out: Pairs) -> float:
    """Estimate the time of all choices and of the last solution by a small one; 0: no time."""
    sizes = len(training.z), len(held_out.z)
    choice = count_solving(*sizes, training)
    whole = len(kernels) * choice + count_solving(sum(sizes), 0, training)
    if whole < LEAST_TRIED:
        return 0.0
    rows, others = (max(2, round(TRIAL_SHARE * size)) for size in sizes)
    begin = time.monotonic()
    choose_penalty(kernels[-1], training.take(rows), held_out.take(others))
    return (time.monotonic() - begin) * whole / count_solving(rows, others, training)


def count_solving(rows: int, held_out: int, pairs: Pairs) -> float:
    """Count the operations of `choose_penalty` with so many messages, of the size of `pairs`."""
    features, images = pairs.z.shape[1], pairs.x
    kernel = 2 * rows * (rows + held_out) * features
    weights = 2 * rows * rows * held_out * (1 + len(PENALTIES))
    rebuilding = 2 * held_out * images.numel() * len(PENALTIES)
    return float(kernel + EIGEN_OPERATIONS * rows**3 + weights + rebuilding)


def sample_pairs(attacker: Attacker, images: Float[Tensor, "A C H W"], draws: int) -> Pairs:
    """Return `draws` messages of each image, with it."""
    observe = make_observer(attacker.observation, images, attacker.generator)
    z = torch.cat([observe(attacker.generator) for _ in range(draws)])
    return Pairs(z.double(), images.flatten(1), torch.arange(len(images)).repeat(draws))


def list_kernels(z: Float[Tensor, "N F"]) -> Sequence[Kernel]:
    """Return what is tried: the linear kernel, and Gaussian ones where messages differ at all."""
    centre = z.mean(0)
    median = float(torch.pdist(z[:MEDIAN_ROWS]).square().median())
    gaussian = [Kernel(centre, width * median) for width in KERNEL_WIDTHS] if median > 0 else []
    return [Kernel(centre, None), *gaussian]


def choose_penalty(kernel: Kernel, training: Pairs, held_out: Pairs) -> tuple[float, float]:
    """Return the lowest squared error on held-out images, and the penalty that reaches it."""
    regression = solve_regression(kernel, training)
    projected = regression.project(held_out.z)
    rebuilt = (regression.rebuild(projected, penalty) for penalty in PENALTIES)
    images = held_out.x[held_out.place]
    errors = [float((guess - images).square().mean(dtype=torch.float64)) for guess in rebuilt]
    return min(zip(errors, PENALTIES, strict=True), key=lambda choice: choice[0])


def ridge_penalty(penalty: float, values: Float[Tensor, " N"]) -> float:
    """Return lambda; that of a kernel that is 0 everywhere is 1, and nothing is learned."""
    return penalty * float(values[-1]) / len(values) or 1.0


def solve_regression(kernel: Kernel, pairs: Pairs) -> Regression:
    """Return what is solved once for all penalties and messages."""
    values, vectors = torch.linalg.eigh(kernel.matrix(pairs.z, pairs.z))
    return Regression(kernel, pairs, values.clamp_min(0), vectors)
