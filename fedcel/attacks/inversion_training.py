"""Train a network from observations back to images: the one training loop of all such attacks."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fedcel.attacks.decoder_networks import SMALL, Size, build_decoder_network, is_flat
from fedcel.attacks.protocol import Progress, report_progress
from fedcel.errors import DataError
from fedcel.leakage import FREE_QUERIES, Observation
from fedcel.nets import fastest_device, use_full_precision

HELD = 0.2  # share of the attacker's images on which he chooses the best epoch
HELD_DRAWS = 8  # observations of each, so that the choice is not one of noise
HELD_ROWS = 2000  # at most, where one draw has not more already

Draw = Callable[[torch.Generator], Float[Tensor, "A F"]]
Prepare = Callable[[Float[Tensor, "N F"]], Float[Tensor, "N F"]]


class Pace(NamedTuple):
    """How fast a network learns: passes over the images, Adam's first step, images in a batch."""

    epochs: int
    rate: float
    batch: int
    """At most; of few images a quarter, 32 at least."""

    def size(self, images: int) -> int:
        """Return the images of a batch."""
        return min(self.batch, max(32, images // 4))


FLAT = Pace(300, 1e-3, 256)
CONVOLUTION = Pace(50, 2e-3, 32)


@dataclass(frozen=True)
class Effort:
    """How a decoder network is trained; epochs are multiplied by the attack's budget.

    Paces are those of the lowest error on held images of what was tried: with 256 in a batch a
    network of convolutions stopped far from where it was going.
    """

    flat: Pace = FLAT
    convolution: Pace = CONVOLUTION
    rate_end: float = 0.01
    """Adam's step at the end of the cosine, as a share of the first."""
    decay: float = 1e-4
    repeats: int = 16
    """Answers asked for each image, where asking is not free."""
    size: Size = SMALL
    """Of the network where images are not small."""

    def pace(self, shape: tuple[int, ...], budget: float) -> Pace:
        """Return the pace for images of this shape, at least one epoch."""
        usual = self.flat if is_flat(shape) else self.convolution
        return usual._replace(epochs=max(1, round(usual.epochs * budget)))


DEFAULT = Effort()


class Fitted(NamedTuple):
    """A network from prepared observations to images, what it learnt, what chose its epoch."""

    net: nn.Module
    own: Float[Tensor, "N C H W"]
    held: Float[Tensor, "V C H W"]


def train_and_invert(
    observation: Observation,
    auxiliary: Float[Tensor, "A C H W"],
    observed: Float[Tensor, "T F"],
    effort: Effort,
    prepare: Prepare,
    budget: float,
    generator: torch.Generator,
    progress: Progress | None = None,
) -> Float[Tensor, "T C H W"]:
    """Return the targets as a network sees them that was trained on the attacker's images.

    `prepare` is applied to every observation first. DataError on fewer than two auxiliary images.
    """
    found = train_inverter(observation, auxiliary, effort, prepare, budget, generator, progress)
    return apply_network(found.net, prepare(observed))


def train_inverter(
    observation: Observation,
    auxiliary: Float[Tensor, "A C H W"],
    effort: Effort,
    prepare: Prepare,
    budget: float,
    generator: torch.Generator,
    progress: Progress | None = None,
) -> Fitted:
    """Return a network that was trained on the attacker's images.

    A fifth of the images is held back and decides the epoch that is kept. DataError on fewer than
    two auxiliary images.
    """
    images, held = split_held_out(auxiliary, generator)
    draw = make_observer(observation, images, effort.repeats, prepare, generator)
    check = make_observer(observation, held, effort.repeats, prepare, generator)
    draws = max(1, min(HELD_DRAWS, HELD_ROWS // len(held)))
    checks = torch.cat([check(generator) for _ in range(draws)])
    seen = torch.cat([draw(generator) for _ in range(draws)])
    shape = tuple(auxiliary.shape[1:])
    net = build_decoder_network(seen, shape, generator, effort.size)
    pace = effort.pace(shape, budget)
    truth = held.repeat(draws, 1, 1, 1)
    best = train_network(net, draw, images, checks, truth, effort, pace, generator, progress)
    return Fitted(best, images, held)


def split_held_out(
    images: Float[Tensor, "A C H W"], generator: torch.Generator
) -> tuple[Float[Tensor, "N C H W"], Float[Tensor, "V C H W"]]:
    """Return images to learn from, and a random fifth to choose on; DataError on fewer than two."""
    if len(images) < 2:
        raise DataError(f"the attacker has {len(images)} images, needs 2; raise data.auxiliary")
    order = torch.randperm(len(images), generator=generator)
    count = max(1, int(HELD * len(order)))
    return images[order[count:]], images[order[:count]]


def make_observer(
    observation: Observation,
    images: Float[Tensor, "A C H W"],
    repeats: int,
    prepare: Prepare,
    generator: torch.Generator,
) -> Draw:
    """Return a function that gives one observation per image.

    Fresh each time where the observation grants free queries; else each image is asked about
    `repeats` times, once and for all, and every call picks one of its answers at random.
    """
    if FREE_QUERIES in observation.grants:
        return lambda stream: prepare(observation.sample(images, stream))
    kept = torch.stack([prepare(observation.sample(images, generator)) for _ in range(repeats)])

    def pick(stream: torch.Generator) -> Float[Tensor, "A F"]:
        which = torch.randint(repeats, (len(images),), generator=stream)
        return kept[which, torch.arange(len(images))]

    return pick


@use_full_precision()
def train_network(
    net: nn.Module,
    draw: Draw,
    images: Float[Tensor, "A C H W"],
    checks: Float[Tensor, "V F"],
    truth: Float[Tensor, "V C H W"],
    effort: Effort,
    pace: Pace,
    generator: torch.Generator,
    progress: Progress | None,
) -> nn.Module:
    """Return the network of the epoch with the lowest mean squared error on the held images.

    The network ends on its fastest device; everything else stays where it is.
    """
    place = fastest_device(net)
    net, there = net.to(place), images.to(place)
    net = net.to(memory_format=torch.channels_last)  # faster
    adam = torch.optim.Adam(net.parameters(), pace.rate, weight_decay=effort.decay)
    end = pace.rate * effort.rate_end
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(adam, pace.epochs, eta_min=end)
    best, lowest = net, torch.inf
    for epoch in range(1, pace.epochs + 1):
        inputs = draw(generator).to(place)
        order = torch.randperm(len(images), generator=generator).to(place)
        for part in torch.split(order, pace.size(len(images))):
            adam.zero_grad()
            (net(inputs[part]) - there[part]).square().mean().backward()
            adam.step()
        cosine.step()
        error = float((apply_network(net, checks) - truth).square().mean())
        if error < lowest:
            best, lowest = deepcopy(net), error
        report_progress(progress, "epoch", epoch, pace.epochs, f"MSE {error:.4f} on held images")
    return best


@use_full_precision()
def apply_network(net: nn.Module, inputs: Float[Tensor, "N F"]) -> Float[Tensor, "N C H W"]:
    """Return the network's images, in chunks, without a gradient; where the inputs are."""
    place = next(net.parameters()).device
    with torch.no_grad():
        made = [net(part.to(place)) for part in torch.split(inputs, 1024)]
        return torch.cat(made).to(inputs.device)
