"""Decoder networks: from observations back to images, learned on images of the attacker's own."""

from collections.abc import Callable, Iterable
from copy import deepcopy
from dataclasses import dataclass, replace
from math import prod
from typing import NamedTuple

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn

from fedcel.attacks.attack import Attacker, BaseAttack, Rebuild, Reconstructions
from fedcel.errors import DataError
from fedcel.leakage import FREE_QUERIES, Observation
from fedcel.nets import fastest_device, initialise_parameters
from fedcel.torch_state import use_full_precision

MAX_FLAT_PIXELS = 256  # a channel, up to which a plain network does
HIDDEN_UNITS = 256
HELD_OUT_SHARE = 0.2  # of the attacker's images, on which the best epoch is chosen
HELD_OUT_DRAWS = 8  # observations of each, so that the choice is not one of noise
MAX_HELD_OUT_ROWS = 2000  # where one draw has not more already
IMAGES_AT_ONCE = 1024  # through a trained network
BATCH_SIZE, LEARNING_RATE = 64, 1e-3  # of `minimise_loss`


class DecoderSize(NamedTuple):
    """Residual blocks of the convolutional decoder, at a quarter of the sides, and their width."""

    blocks: int
    channels: int


SMALL_DECODER = DecoderSize(2, 32)
LARGE_DECODER = DecoderSize(8, 64)
"""The decoder of Xia et al., CVPR 2025."""


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions around which the input is carried; He et al., CVPR 2016, figure 2."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1),
        )

    def forward(self, x: Float[Tensor, "B K h w"]) -> Float[Tensor, "B K h w"]:
        """Return relu(x + body(x))."""
        return torch.relu(x + self.body(x))


class Standardisation(nn.Module):
    """Subtract the mean and divide by the sd of what the attacker saw in training."""

    def __init__(self, examples: Float[Tensor, "N F"]) -> None:
        super().__init__()
        sd, mean = torch.std_mean(examples, 0, correction=0)
        self.mean, self.sd = nn.Buffer(mean), nn.Buffer(sd.where(sd > 0, 1.0))  # dead stays 0

    def forward(self, x: Float[Tensor, "B F"]) -> Float[Tensor, "B F"]:
        """Return x in units of the training standard deviation."""
        return (x - self.mean) / self.sd


def is_flat(shape: tuple[int, ...]) -> bool:
    """Say whether images (C, H, W) are for the plain network: small, or not divisible by 4."""
    height, width = shape[1:]
    return height * width <= MAX_FLAT_PIXELS or bool(height % 4 or width % 4)


def build_decoder_network(
    examples: Float[Tensor, "N F"],
    shape: tuple[int, ...],
    generator: torch.Generator,
    size: DecoderSize = SMALL_DECODER,
) -> nn.Module:
    """Return an untrained decoder for vectors like `examples` and images `shape` (C, H, W).

    Small images: F-256-256-pixels, whatever the `size`. Others: linear to (channels, H/4, W/4),
    residual blocks, 2 transposed convolutions, after the inversion networks of Xia et al., CVPR
    2025.
    """
    features, (channels, height, width) = examples.shape[1], shape
    layers: list[nn.Module]
    if is_flat(shape):
        layers = [
            nn.Linear(features, HIDDEN_UNITS),
            nn.ReLU(),
            nn.Linear(HIDDEN_UNITS, HIDDEN_UNITS),
            nn.ReLU(),
            nn.Linear(HIDDEN_UNITS, prod(shape)),
            nn.Unflatten(1, shape),
        ]
    else:
        quarter = (size.channels, height // 4, width // 4)
        layers = [
            nn.Linear(features, prod(quarter)),
            nn.Unflatten(1, quarter),
            *(ResidualBlock(size.channels) for _ in range(size.blocks)),
            nn.ConvTranspose2d(size.channels, size.channels, 4, stride=2, padding=1),
            nn.ReLU(),
            nn.ConvTranspose2d(size.channels, channels, 4, stride=2, padding=1),
        ]
    net = nn.Sequential(Standardisation(examples), *layers, nn.Sigmoid())
    initialise_parameters(net, generator)
    for layer in net.modules():
        if isinstance(layer, nn.ConvTranspose2d):
            bound = layer.weight[0].numel() ** -0.5
            for parameter in layer.parameters():
                nn.init.uniform_(parameter, -bound, bound, generator=generator)
    return net


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
    images: Shaped[Tensor, "A ..."], generator: torch.Generator
) -> tuple[Shaped[Tensor, "N ..."], Shaped[Tensor, "V ..."]]:
    """Return images, or their numbers, to learn from, and a random fifth to choose on.

    DataError on fewer than two.
    """
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


@dataclass(frozen=True)
class Decoder(BaseAttack):
    """Train a network from messages back to images; the best epoch is kept.

    The attacker trains through the defence: every epoch sees messages with fresh noise.

    Args:
        name, needs, observes: See `Attack`.
        effort: How the network is trained.

    References:
        Xia et al., CVPR 2025 (the decoding attack).
    """

    name: str = "decoder"
    needs: frozenset[str] = frozenset()
    observes: str = "smashed-data"
    effort: Effort = DEFAULT_EFFORT

    def invert(self, attacker: Attacker, observed: Float[Tensor, "T F"]) -> Reconstructions:
        """Return one image per message."""
        return self.learn(attacker)(observed)

    def learn(self, attacker: Attacker) -> Rebuild:
        """Train the network once, for messages that arrive later."""
        net, _ = train_inverter(attacker, self.effort)
        return lambda observed: apply_network(net, observed)


def centre_logits(answers: Float[Tensor, "N K"]) -> Float[Tensor, "N K"]:
    """Return logits with mean 0: a number added to all of them means nothing."""
    return answers - answers.mean(1, keepdim=True)


@dataclass(frozen=True)
class CentredLogits:
    """An observation's answers, centred."""

    answers: Observation

    @property
    def name(self) -> str:
        """The kind of the answers."""
        return self.answers.name

    @property
    def grants(self) -> frozenset[str]:
        """What the answers grant."""
        return self.answers.grants

    def sample(
        self, images: Float[Tensor, "B C H W"], generator: torch.Generator
    ) -> Float[Tensor, "B K"]:
        """Return one fresh answer per image, centred."""
        return centre_logits(self.answers.sample(images, generator))


@dataclass(frozen=True)
class LogitInversion(Decoder):
    """Train a network from a service's answers back to images.

    Each of the attacker's images is asked about `effort.repeats` times, because the service adds
    noise of its own.

    Args:
        name, needs, observes: See `Attack`.
        effort: How the network is trained.

    References:
        Yang et al., CCS 2019 (inversion of prediction vectors).
    """

    name: str = "logit-inversion"
    observes: str = "private-logits"

    def learn(self, attacker: Attacker) -> Rebuild:
        """Train the network once, on centred answers."""
        centred = replace(attacker, observation=CentredLogits(attacker.observation))
        rebuild = super().learn(centred)
        return lambda answers: rebuild(centre_logits(answers))
