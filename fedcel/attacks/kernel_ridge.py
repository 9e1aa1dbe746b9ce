"""Kernel ridge regression from messages to images: a decoder in closed form.

Source: Saunders, Gammerman and Vovk, ICML 1998, equation 7; with the linear kernel it is the ridge
regression of Hoerl and Kennard, 1970. Of few images it makes more than a network does.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from fedcel.attacks.decoder import pass_through
from fedcel.attacks.inversion_training import HELD, make_observer, split_held_out
from fedcel.attacks.protocol import Progress, report_progress
from fedcel.data import Images
from fedcel.leakage import Observation

IMAGES, ROWS = 2000, 500
WIDTHS = (0.5, 2.0, 8.0, 32.0)
"""Of the Gaussian kernels, squared, in units of the median squared distance."""
RIDGES = tuple(10.0**power for power in range(-5, 3))
"""Tried as lambda, in units of the kernel's largest eigenvalue over the number of rows."""
TYPICAL = 500  # messages whose distances give the unit of width
CHECKS = 2  # messages of each held image


Regressor = Callable[[Float[Tensor, "T F"]], Float[Tensor, "T P"]]
"""Flat images in [0, 1] from messages, both in float64."""


class Pairs(NamedTuple):
    """Messages and the images behind them, in float64."""

    z: Float[Tensor, "N F"]
    x: Float[Tensor, "N P"]


class Kernel(NamedTuple):
    """exp(-|a - b|^2 / width) of centred messages; without a width the product a'b."""

    centre: Float[Tensor, " F"]
    width: float | None

    def of(self, a: Float[Tensor, "N F"], b: Float[Tensor, "M F"]) -> Float[Tensor, "N M"]:
        """Return the kernel of all pairs."""
        if self.width is None:
            return (a - self.centre) @ (b - self.centre).T
        return torch.cdist(a, b).square_().div_(-self.width).exp_()


class Choice(NamedTuple):
    """A kernel and its lambda, and their mean squared error on held images."""

    error: float
    kernel: Kernel
    ridge: float


@dataclass(frozen=True)
class KernelRidge:
    """The image of least penalised squared error that is linear in a kernel of the message.

    Kernel and penalty are those that rebuild best a fifth of the attacker's images, seen through
    fresh noise. Of more than `images` so many are drawn; of fewer than `rows` each has several
    messages. The effort grows as the cube of both, so a budget's cube root multiplies them.
    """

    name: str = "kernel-ridge"
    needs: frozenset[str] = frozenset()
    observes: str = "smashed-data"
    images: int = IMAGES
    rows: int = ROWS
    repeats: int = 16
    """Answers asked for each image, where asking is not free."""

    def reconstruct(
        self,
        observation: Observation,
        auxiliary: Images,
        observed: Float[Tensor, "T F"],
        budget: float,
        generator: torch.Generator,
        progress: Progress | None = None,
    ) -> Float[Tensor, "T C H W"]:
        """Return one image in [0, 1] per message; DataError on fewer than two own images."""
        times = budget ** (1 / 3)
        most = max(2, round(self.images * times))
        order = torch.randperm(len(auxiliary.x), generator=generator)[:most]
        own, held = split_held_out(auxiliary.x[order], generator)
        usual = max(1, round((1 - HELD) * min(len(auxiliary.x), self.images)))
        rows = count_rows(usual, self.rows, times)
        found = choose_regression(observation, own, held, rows, self.repeats, generator, progress)
        every = Pairs(*(torch.cat(both) for both in zip(found.known, found.checks, strict=True)))
        made = regress_images(found.choice, every, observed.double())
        return made.to(auxiliary.x.dtype).view(len(observed), *auxiliary.x.shape[1:])


def count_rows(images: int, rows: int, times: float) -> int:
    """Return how many messages are learned from: of the usual number of images about `rows`.

    One of each at least, and `times` as many where the budget asks for it: some images have one
    more or less than others then.
    """
    return max(2, round(times * images * max(1, rows // images)))


class Regression(NamedTuple):
    """What was chosen, what it learns from, and the messages of the held images that chose it."""

    choice: Choice
    known: Pairs
    checks: Pairs


def choose_regression(
    observation: Observation,
    own: Float[Tensor, "A C H W"],
    held: Float[Tensor, "V C H W"],
    rows: int,
    repeats: int,
    generator: torch.Generator,
    progress: Progress | None = None,
) -> Regression:
    """Return the kernel and penalty for `rows` messages of `own`, best on `held`."""
    drawn = sample_pairs(observation, own, -(-rows // len(own)), repeats, generator)
    known = Pairs(drawn.z[:rows], drawn.x[:rows])
    checks = sample_pairs(observation, held, CHECKS, repeats, generator)
    options, found = list_kernels(known.z), list[Choice]()
    for number, kernel in enumerate(options, 1):
        found.append(choose_penalty(kernel, known, checks))
        done = number * len(known.z), len(options) * len(known.z)
        report_progress(progress, "row", *done, f"MSE {found[-1].error:.4f} on held images")
    return Regression(min(found, key=lambda choice: choice.error), known, checks)


def sample_pairs(
    observation: Observation,
    images: Float[Tensor, "A C H W"],
    draws: int,
    repeats: int,
    generator: torch.Generator,
) -> Pairs:
    """Return `draws` messages of each image, with it."""
    draw = make_observer(observation, images, repeats, pass_through, generator)
    z = torch.cat([draw(generator) for _ in range(draws)])
    return Pairs(z.double(), images.flatten(1).double().repeat(draws, 1))


def list_kernels(z: Float[Tensor, "N F"]) -> Sequence[Kernel]:
    """Return what is tried: the linear kernel, and Gaussian ones where messages differ at all."""
    centre, typical = z.mean(0), float(torch.pdist(z[:TYPICAL]).square().median())
    wide = [Kernel(centre, width * typical) for width in WIDTHS] if typical > 0 else []
    return [Kernel(centre, None), *wide]


def choose_penalty(kernel: Kernel, known: Pairs, checks: Pairs) -> Choice:
    """Return a kernel with the penalty that rebuilds the held images best."""
    solved = decompose_kernel(kernel, known)
    seen = kernel.of(checks.z, known.z) @ solved.vectors
    found = [
        Choice(
            float((rebuild_images(solved, seen, ridge) - checks.x).square().mean()), kernel, ridge
        )
        for ridge in RIDGES
    ]
    return min(found, key=lambda choice: choice.error)


def ridge_penalty(ridge: float, values: Float[Tensor, " N"]) -> float:
    """Return lambda; that of a kernel that is 0 everywhere is 1, and nothing is learned."""
    return ridge * float(values[-1]) / len(values) or 1.0


def regress_images(
    choice: Choice, known: Pairs, observed: Float[Tensor, "T F"]
) -> Float[Tensor, "T P"]:
    """Return the images of messages, all that is known used."""
    return fit_regression(choice, known)(observed)


def fit_regression(choice: Choice, known: Pairs) -> Regressor:
    """Return what gives the images of any messages; it is solved once, here."""
    solved = decompose_kernel(choice.kernel, known)

    def images(observed: Float[Tensor, "T F"]) -> Float[Tensor, "T P"]:
        seen = choice.kernel.of(observed, known.z) @ solved.vectors
        return rebuild_images(solved, seen, choice.ridge)

    return images


class Spectrum(NamedTuple):
    """Eigenvalues and vectors of the kernel of what is known, its images in that basis, centred."""

    values: Float[Tensor, " N"]
    vectors: Float[Tensor, "N N"]
    turned: Float[Tensor, "N P"]
    mean: Float[Tensor, " P"]


def decompose_kernel(kernel: Kernel, known: Pairs) -> Spectrum:
    """Return what is solved once for all penalties."""
    values, vectors = torch.linalg.eigh(kernel.of(known.z, known.z))
    mean = known.x.mean(0)
    return Spectrum(values.clamp_min(0), vectors, vectors.T @ (known.x - mean), mean)


def rebuild_images(
    solved: Spectrum, seen: Float[Tensor, "T N"], ridge: float
) -> Float[Tensor, "T P"]:
    """Return the images of messages whose kernel with what is known is `seen`, in that basis."""
    shrunk = solved.turned / (solved.values + ridge_penalty(ridge, solved.values))[:, None]
    return torch.addmm(solved.mean, seen, shrunk).clamp(0, 1)
