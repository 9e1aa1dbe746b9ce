"""Train a network from observations back to images: the training loops that attacks share."""

from collections.abc import Callable, Iterable
from copy import deepcopy
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from fedcel.attacks.attacker import Attacker
from fedcel.attacks.decoder_networks import (
    SMALL_DECODER,
    DecoderSize,
    build_decoder_network,
    is_flat,
)
from fedcel.errors import DataError
from fedcel.leakage import FREE_QUERIES, Observation
from fedcel.nets import fastest_device
from fedcel.torch_state import use_full_precision

HELD_OUT_SHARE = 0.2  # of the attacker's images, on which the best epoch is chosen
HELD_OUT_DRAWS = 8  # observations of each, so that the choice is not one of noise
MAX_HELD_OUT_ROWS = 2000  # where one draw has not more already
IMAGES_AT_ONCE = 1024  # through a trained network
BATCH_SIZE, LEARNING_RATE = 64, 1e-3  # of `minimise_loss`

Draw = Callable[[torch.Generator], Float[Tensor, "A F"]]
"""One observation of each of some images."""


class Pace(NamedTuple):
    """How fast a network learns: passes over the images, Adam's first step, images in a batch."""

    epochs: int
    rate: float
    max_batch: int
    """Images in a batch, at most; of few images a quarter, 32 at least."""

    def batch_size(self, images: int) -> int:
        """Return the images of a batch."""
        return min(self.max_batch, max(32, images // 4))


FLAT_PACE = Pace(300, 1e-3, 256)
CONVOLUTION_PACE = Pace(50, 2e-3, 32)


@dataclass(frozen=True)
class Effort:
    """How a decoder network is trained.

    Paces are those of the lowest error on held-out images of what was tried: with 256 in a batch a
    network of convolutions stopped far from where it was going.

    Args:
        flat: Pace for small images.
        convolution: Pace for others.
        rate_end: Adam's step at the end of the cosine, as a share of the first, in [0, 1].
        decay: Weight decay, 0 or more.
        repeats: Answers asked for each image where asking is not free, 1 or more.
        size: Size of the network where images are not small.
    """

    flat: Pace = FLAT_PACE
    convolution: Pace = CONVOLUTION_PACE
    rate_end: float = 0.01
    decay: float = 1e-4
    repeats: int = 16
    size: DecoderSize = SMALL_DECODER

    def pace(self, shape: tuple[int, ...], budget: float) -> Pace:
        """Return the pace for images (C, H, W), its epochs multiplied by the budget."""
        pace = self.flat if is_flat(shape) else self.convolution
        return pace._replace(epochs=max(1, round(pace.epochs * budget)))


DEFAULT_EFFORT = Effort()


class AttackerImages(NamedTuple):
    """The attacker's images: those to learn from, those held out, and how each is observed."""

    training: Float[Tensor, "N C H W"]
    held_out: Float[Tensor, "V C H W"]
    observe: Draw
    """Observes the training images once."""
    observed: Float[Tensor, "R F"]
    """Several observations of the held-out images, one round after the other."""

    def error(self, net: nn.Module) -> float:
        """Return the network's mean squared error on the held-out images."""
        rounds = len(self.observed) // len(self.held_out)
        truth = self.held_out.repeat(rounds, 1, 1, 1)
        return float((apply_network(net, self.observed) - truth).square().mean())


def train_and_invert(
    attacker: Attacker, observed: Float[Tensor, "T F"], effort: Effort
) -> Float[Tensor, "T C H W"]:
    """Return the targets as a network sees them that was trained on the attacker's images.

    DataError on fewer than two auxiliary images.
    """
    net, _ = train_inverter(attacker, effort)
    return apply_network(net, observed)


@use_full_precision()
def train_inverter(attacker: Attacker, effort: Effort) -> tuple[nn.Module, AttackerImages]:
    """Return a network that was trained on the attacker's images, and these.

    By Adam, its step falling as a cosine. A fifth of the images is held out: the epoch with the
    lowest mean squared error on them is kept. The network ends on its fastest device; everything
    else stays where it is. DataError on fewer than two auxiliary images.
    """
    x, generator = attacker.auxiliary.x, attacker.generator
    draws = max(1, min(HELD_OUT_DRAWS, MAX_HELD_OUT_ROWS // count_held_out(len(x))))
    own_images = observe_own_images(attacker, effort.repeats, draws)
    observed = torch.cat([own_images.observe(generator) for _ in range(draws)])
    net = build_decoder_network(observed, tuple(x.shape[1:]), generator, effort.size)
    device = fastest_device(net)
    net = net.to(device)
    images = own_images.training.to(device)
    net = net.to(memory_format=torch.channels_last)  # faster
    pace = effort.pace(tuple(x.shape[1:]), attacker.budget)
    adam = torch.optim.Adam(net.parameters(), pace.rate, weight_decay=effort.decay)
    end = pace.rate * effort.rate_end
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(adam, pace.epochs, eta_min=end)

    def train_epoch() -> None:
        inputs = own_images.observe(generator).to(device)
        order = torch.randperm(len(images), generator=generator).to(device)
        for part in torch.split(order, pace.batch_size(len(images))):
            adam.zero_grad()
            (net(inputs[part]) - images[part]).square().mean().backward()
            adam.step()
        cosine.step()

    best = keep_best_epoch(attacker, net, own_images, train_epoch, epochs=pace.epochs)
    return best, own_images


def count_held_out(images: int) -> int:
    """Return how many of the attacker's images are held out; DataError where there is but one."""
    if images < 2:
        raise DataError(f"the attacker has {images} images, needs 2; raise data.auxiliary")
    return max(1, int(HELD_OUT_SHARE * images))


def split_held_out(
    images: Float[Tensor, "A C H W"], generator: torch.Generator
) -> tuple[Float[Tensor, "N C H W"], Float[Tensor, "V C H W"]]:
    """Return images to learn from, and a random fifth to choose on; DataError on fewer than two."""
    count = count_held_out(len(images))
    order = torch.randperm(len(images), generator=generator)
    return images[order[count:]], images[order[:count]]


def observe_own_images(attacker: Attacker, repeats: int, draws: int) -> AttackerImages:
    """Split the attacker's images, and observe those held out `draws` times each."""
    observation, generator = attacker.observation, attacker.generator
    training, held_out = split_held_out(attacker.auxiliary.x, generator)
    observe = make_observer(observation, training, repeats, generator)
    observe_held_out = make_observer(observation, held_out, repeats, generator)
    observed = torch.cat([observe_held_out(generator) for _ in range(draws)])
    return AttackerImages(training, held_out, observe, observed)


def make_observer(
    observation: Observation,
    images: Float[Tensor, "A C H W"],
    repeats: int,
    generator: torch.Generator,
) -> Draw:
    """Return a function that gives one observation per image.

    Fresh each time where the observation grants free queries; else each image is asked about
    `repeats` times, once and for all, and every call picks one of its answers at random.
    """
    if FREE_QUERIES in observation.grants:
        return lambda stream: observation.sample(images, stream)
    answers = torch.stack([observation.sample(images, generator) for _ in range(repeats)])

    def pick_answers(stream: torch.Generator) -> Float[Tensor, "A F"]:
        which = torch.randint(repeats, (len(images),), generator=stream)
        return answers[which, torch.arange(len(images))]

    return pick_answers


def keep_best_epoch(
    attacker: Attacker,
    net: nn.Module,
    own_images: AttackerImages,
    train_epoch: Callable[[], None],
    *,
    epochs: int,
) -> nn.Module:
    """Train a network in place for some epochs; return that of the lowest held-out error."""
    best = net
    lowest = torch.inf
    for epoch in range(1, epochs + 1):
        train_epoch()
        error = own_images.error(net)
        if error < lowest:
            best = deepcopy(net)
            lowest = error
        attacker.report("epoch", epoch, epochs, f"MSE {error:.4f} on held images")
    return best


def minimise_loss(
    parameters: Iterable[Tensor],
    batch_loss: Callable[[Int[Tensor, " b"]], Float[Tensor, ""]],
    images: int,
    epochs: int,
    *,
    generator: torch.Generator,
    rate: float = LEARNING_RATE,
    tell_epoch: Callable[[int, float], None] = lambda epoch, loss: None,
) -> None:
    """Move parameters in place, by Adam, to a low loss of batches of images.

    `batch_loss` takes the images' numbers; `tell_epoch` the epoch, from 1, and its last loss.
    """
    trainable = [parameter for parameter in parameters if parameter.requires_grad]
    adam = torch.optim.Adam(trainable, rate)
    for epoch in range(1, epochs + 1):
        for batch in torch.split(torch.randperm(images, generator=generator), BATCH_SIZE):
            loss = batch_loss(batch)
            adam.zero_grad()
            torch.autograd.backward(loss, inputs=trainable)
            adam.step()
        tell_epoch(epoch, float(loss.detach()))


@use_full_precision()
def apply_network(net: nn.Module, inputs: Float[Tensor, "N F"]) -> Float[Tensor, "N C H W"]:
    """Return the network's images, in chunks, without a gradient; where the inputs are."""
    device = next(net.parameters()).device
    with torch.no_grad():
        parts = [net(part.to(device)) for part in torch.split(inputs, IMAGES_AT_ONCE)]
        return torch.cat(parts).to(inputs.device)
