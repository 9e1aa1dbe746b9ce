"""Attackers of photographs of 224 pixels who have photographs, other images, or none.

`other_images.py PHOTOGRAPHS CIFAR --out FILE` cuts a pretrained EfficientNet-Lite0 and rebuilds
photographs from its messages: with a decoder and kernel ridge fitted to photographs or to CIFAR-10
enlarged, and with the posterior mean of a Gaussian image, which needs no training, from either
prior or from one of smooth images alone. Rows are written as they come.
"""

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, NamedTuple, Self, cast

import torch
import typer
from torch import Tensor, nn
from torch.nn.functional import interpolate, normalize

import fedcel
from fedcel.attacks import mse
from fedcel.data import HuggingFace, read_source, to_floats
from fedcel.files import read_json, write_json
from fedcel.leakage import ImagePrior, fit_image_prior
from fedcel.leakage.local_channel import LocalChannel, ready_encoder
from fedcel.nets import Normalise, call_encoder, encode_images
from fedcel.torch_state import make_generator
from leakage_measures import LITE_DEVIATION, LITE_MEAN, Rows, load_lite
from sims.commands.main import main
from sims.commands.options import option
from sims.progress import print_line

SIZE, TARGETS, IMAGES = 224, 40, 800
CUTS = ("_blocks.4",)
LEVEL = 0.3
"""Noise in units of the features' root mean square."""
ROUNDS, SOLVER_STEPS, HALVINGS = 4, 25, 3
LEAST_VARIANCE = 1e-4
"""Variance of every direction of a prior at least: who takes one as known trusts it too far."""
SMOOTH_MEAN, SMOOTH_VARIANCE = 0.45, 0.06
"""Mean and variance of a pixel that an attacker without images takes photographs to have."""
SMOOTH_CHANNELS = ((1, 1, 1), (1, 0, -1), (1, -2, 1))
SMOOTH_SHARES = (0.92, 0.06, 0.02)
"""Luminance and two differences of colours, and their shares of the variance."""

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def other_images(
    photographs: Annotated[str, typer.Argument(help="Folder of photographs.")],
    cifar: Annotated[str, typer.Argument(help="Folder of CIFAR-10.")],
    out: Annotated[Path, option(help="File of rows; a call goes on there.")],
) -> None:
    """Rebuild photographs with and without images of their kind."""
    torch.set_num_threads(1)
    rows = cast(Rows, read_json(out)) if out.exists() else []
    whole = draw(photographs, SIZE, TARGETS + IMAGES)
    targets, own = whole[:TARGETS], whole[TARGETS:]
    small = draw(cifar, 32, IMAGES)
    other = interpolate(small, (SIZE, SIZE), mode="bicubic", antialias=True).clamp(0, 1)
    attackers = [
        Attacker("photographs", own, widen(fit_image_prior(own))),
        Attacker("CIFAR-10", other, widen(fit_image_prior(other))),
        Attacker("none", None, widen(make_smooth_prior())),
    ]
    lite = load_lite()
    normalise = Normalise((LITE_MEAN,) * 3, (LITE_DEVIATION,) * 3)
    for cut in CUTS:
        encoder = nn.Sequential(normalise, fedcel.split(lite, cut)[0]).eval()
        channel = Channel.make(encoder, targets)
        for attacker in attackers:
            done = {(row["cut"], row["images"]) for row in rows}
            if (cut, attacker.images) in done:
                continue
            found = []
            for name, guesses, seconds in attack(channel, attacker):
                row = {"cut": cut, "attack": name, "images": attacker.images, "level": LEVEL}
                found.append(row | score(guesses, targets) | {"seconds": round(seconds, 1)})
                print_line(f"{cut}: {name}, images: {attacker.images}: MSE {found[-1]['mse']:.4f}")
            rows += found
            write_json(out, rows)


class Channel(NamedTuple):
    """An encoder, images, and a message of each."""

    encoder: nn.Module
    targets: Tensor
    sigma: float
    observed: Tensor

    @classmethod
    def make(cls, encoder: nn.Module, targets: Tensor) -> Self:
        """Draw the messages."""
        clean = encode_images(encoder, targets)
        sigma = LEVEL * float(clean.double().square().mean().sqrt())
        noise = torch.randn(clean.shape, generator=make_generator(0, "other-images/noise", 1))
        return cls(encoder, targets, sigma, clean + sigma * noise)


class Attacker(NamedTuple):
    """What an attacker has."""

    images: str
    auxiliary: Tensor | None
    prior: ImagePrior


def attack(channel: Channel, attacker: Attacker) -> Iterator[tuple[str, Tensor, float]]:
    """Yield the name of each attack, its guesses and its seconds of processor time."""
    targets, mean = channel.targets, attacker.prior.means.float()
    attempts: dict[str, Callable[[Tensor], Tensor]] = {
        "mean image": lambda _: mean.expand_as(targets),
        "posterior mean": lambda _: find_means(channel, mean.expand_as(targets), attacker.prior),
    }
    if attacker.auxiliary is not None:
        attempts |= {
            "kernel-ridge": lambda _: invert(channel, attacker, "kernel-ridge"),
            "decoder": lambda _: invert(channel, attacker, "decoder"),
            "decoder, refined": lambda guess: find_means(channel, guess, attacker.prior),
        }
    guesses = targets.new_empty(0)
    for name, attempt in attempts.items():
        begin = time.process_time()
        guesses = attempt(guesses).clamp(0, 1)
        yield name, guesses, time.process_time() - begin


def invert(channel: Channel, attacker: Attacker, name: str) -> Tensor:
    """Return the guesses of an attack that learns from the attacker's images."""
    assert attacker.auxiliary is not None
    inversion = fedcel.invert(
        channel.encoder,
        channel.targets,
        auxiliary=attacker.auxiliary,
        noise=channel.sigma,
        attacks=[name],
    )
    return inversion.reconstructions[name]


def find_means(channel: Channel, start: Tensor, prior: ImagePrior) -> Tensor:
    """Return the posterior mean of each image, from a start of its own."""
    encoder, dtype = ready_encoder(channel.encoder, channel.targets)
    images = [
        find_posterior_mean(encoder, message[None], image[None].to(dtype), prior, channel.sigma)
        for message, image in zip(channel.observed, start, strict=True)
    ]
    return torch.cat(images)


def draw(place: str, size: int, count: int) -> Tensor:
    """Draw images of a source's training part, resized."""
    images = read_source(HuggingFace.model_validate({"path": place, "size": size})).train.x
    order = torch.randperm(len(images), generator=make_generator(0, "other-images"))[:count]
    return to_floats(images[order])


def make_smooth_prior() -> ImagePrior:
    """Return a prior whose power falls as the square of the frequency, of pale images."""
    basis = normalize(torch.tensor(SMOOTH_CHANNELS).double(), dim=1).T
    places = torch.arange(SIZE).double()
    power = 1 / (1 + places.square()[:, None] + places.square())
    share = torch.tensor(SMOOTH_SHARES).double()[:, None, None] * 3
    variances = SMOOTH_VARIANCE * share * power / power.mean()
    shape = (3, SIZE, SIZE)
    return ImagePrior(
        shape,
        variances.flatten(),
        torch.full((1, *shape), SMOOTH_MEAN).double(),
        torch.zeros(1, dtype=torch.long),
        is_within_class=False,
        estimator="power of smooth images",
        channels=basis,
        rotation=None,
    )


def widen(prior: ImagePrior) -> ImagePrior:
    """Return a prior with a least variance in every direction."""
    return replace(prior, variances=prior.variances.clamp_min(LEAST_VARIANCE))


def find_posterior_mean(
    encoder: Callable[[Tensor], object],
    observed: Tensor,
    start: Tensor,
    prior: ImagePrior,
    sigma: float,
) -> Tensor:
    """Return the posterior mean of one image, with the encoder linearised at each estimate.

    Conjugate gradients solve (I + A C A^T) a = r in the features; a step that raises the objective
    is halved.
    """
    mean, root = prior.means[:1].to(start), prior.variances.sqrt()

    def objective(x: Tensor) -> float:
        with torch.no_grad():
            gap = (observed - call_encoder(encoder, x)) / sigma
        whitened = prior.to_coefficients(x - mean).double() / root
        return float(gap.double().square().sum() + whitened.square().sum())

    x, cost = start, objective(start)
    for _ in range(ROUNDS):
        change = step_to_mean(LocalChannel(encoder, x, noise=sigma), observed, x - mean, prior)
        for halving in range(HALVINGS + 1):
            tried = x + change / 2**halving
            if (new := objective(tried)) < cost:
                break
        else:
            return x
        x, cost = tried, new
    return x


def step_to_mean(
    channel: LocalChannel, observed: Tensor, offset: Tensor, prior: ImagePrior
) -> Tensor:
    """Return the way from an image to the posterior mean of the channel around it."""

    def spread(outputs: Tensor) -> Tensor:
        """Compute C A^T v."""
        pulled = prior.to_coefficients(channel.pull(outputs.to(offset))).double()
        return prior.from_coefficients(pulled * prior.variances).to(offset)

    gap = (observed - channel.features.detach()) / channel.deviations
    right = gap.double() + channel.push(offset).double()
    return spread(solve(lambda v: v + channel.push(spread(v)).double(), right)) - offset


def solve(multiply: Callable[[Tensor], Tensor], right: Tensor) -> Tensor:
    """Solve a positive definite system by conjugate gradients."""
    solution, residual = torch.zeros_like(right), right
    direction, size = residual, right.square().sum()
    for _ in range(SOLVER_STEPS):
        product = multiply(direction)
        step = size / (direction * product).sum()
        solution, residual = solution + step * direction, residual - step * product
        size, last = residual.square().sum(), size
        direction = residual + size / last * direction
    return solution


def score(guesses: Tensor, targets: Tensor) -> dict[str, float]:
    """Return the mean squared error of a pixel, and its half width over targets."""
    errors = (guesses - targets).square().flatten(1).mean(1).double()
    deviation = float(errors.std()) / len(errors) ** 0.5
    return {
        "mse": mse(guesses, targets),
        "mse-half-width": 2.02 * deviation,
        "targets": len(errors),
    }


if __name__ == "__main__":
    sys.exit(main(app=app, name="other_images.py"))
