"""Decoder networks: from observations back to images, learned on images of the attacker's own."""

from collections.abc import Callable
from copy import deepcopy
from math import ceil, log2, prod
from typing import NamedTuple

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from fedcel.attacks.attack import Attacker, BaseAttack, Rebuild, Reconstructions
from fedcel.errors import DataError
from fedcel.leakage import FREE_QUERIES, Observation, SmashedData
from fedcel.nets import (
    choose_batch_size,
    fast_precision,
    fastest_device,
    initialise_parameters,
)
from fedcel.short_repr import show_shapes
from fedcel.torch_state import compute_in, use_full_precision

MAX_FLAT_PIXELS = 256  # a channel, up to which a plain network does
MAX_UNEVEN_PIXELS = 1024  # the same where a side is not divisible by 4
MAX_START_SIDE = 16  # pixels, from which a network of convolutions enlarges what it makes
FULL_WIDTH_SIDE = 32  # pixels, above which layers are narrower, by their side
MIN_CHANNELS = 16
MAP_SIDE = 4  # rows from which features count as a map
MAX_INPUTS = 4096  # values of a message that a dense layer takes; more are projected first
HIDDEN_UNITS = 256
HELD_OUT_SHARE = 0.2  # of the attacker's images, on which the best epoch is chosen
HELD_OUT_DRAWS = 8  # observations of each, so that the choice is not one of noise
MAX_HELD_OUT_VALUES = 2**24  # of all of them, or one draw
MAX_HELD_OUT_PIXELS = 2**25  # that are rebuilt of all of them, or one draw
MIN_PATIENCE = 10  # epochs without a better one, after which a training may end
PATIENCE = 0.4  # the same as a share of all epochs; the larger number counts
MAX_HELD_OUT_ROWS = 2000  # where one draw has not more already
LAST_RATE_SHARE, WEIGHT_DECAY = 0.01, 1e-4  # Adam's last step as a share of its first, its decay
REPEATS = 16  # answers asked for each image where asking is not free
BACKWARD_WORK = 3.0  # passes that a step takes as long as, the one forward included
IMAGES_AT_ONCE = 1024  # through a trained network


class DecoderSize(NamedTuple):
    """Residual blocks of the convolutional decoder, before it enlarges, and their width."""

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
    """Whether images (C, H, W) are for the plain network: small, or not divisible by 4."""
    height, width = shape[1:]
    is_uneven = bool(height % 4 or width % 4)
    return height * width <= (MAX_UNEVEN_PIXELS if is_uneven else MAX_FLAT_PIXELS)


class Projection(nn.Module):
    """Messages as coordinates in the space that those of the attacker's training span."""

    def __init__(self, examples: Float[Tensor, "N F"]) -> None:
        super().__init__()
        self.axes = nn.Buffer(torch.linalg.qr(examples[:MAX_INPUTS].T).Q)

    def forward(self, x: Float[Tensor, "B F"]) -> Float[Tensor, "B r"]:
        """Return the coordinates."""
        return x @ self.axes


def find_map(observation: Observation, shape: tuple[int, ...]) -> tuple[int, int, int] | None:
    """Return channels and sides of the map that smashed data are, None where they are none.

    Its sides are to each other as those of the images (C, H, W), and at least `MAP_SIDE`.
    """
    while not isinstance(observation, SmashedData):
        inner = getattr(observation, "once", None)
        if inner is None:
            return None
        observation = inner
    _, height, width = shape
    positions, features = observation.net.positions, observation.net.features
    rows = round((positions * height / width) ** 0.5)
    if rows < MAP_SIDE or positions % rows or features % positions or height < rows:
        return None
    return features // positions, rows, positions // rows


def build_decoder_network(
    examples: Float[Tensor, "N F"],
    shape: tuple[int, ...],
    generator: torch.Generator,
    size: DecoderSize = SMALL_DECODER,
    *,
    feature_map: tuple[int, int, int] | None = None,
) -> nn.Module:
    """Return an untrained decoder for vectors like `examples` and images `shape` (C, H, W).

    Small images: F-256-256-pixels, whatever the `size`. Others: linear to (channels, h, w), h and w
    at most `MAX_START_SIDE` or a quarter, residual blocks, transposed convolutions that double the
    sides, after the inversion networks of Xia et al., CVPR 2025. Features that are a map of
    channels, rows and columns enter a convolution in place of the linear layer.

    Args:
        examples: Vectors (N, F), whose mean and deviation standardise all others.
        shape: Channels, height and width of an image.
        generator: Draws the parameters.
        size: Size of the network where images are not small.
        feature_map: Channels, rows and columns of features that are a map; None: they are none.

    Returns:
        The network, from (B, F) to (B, C, H, W).
    """
    entrance: list[nn.Module] = [Standardisation(examples)]
    if examples.shape[1] > MAX_INPUTS and (is_flat(shape) or feature_map is None):
        entrance.append(Projection(entrance[0](examples)))
        examples = entrance[1](entrance[0](examples[:1]))
    features = examples.shape[1]
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
        layers = list_convolutions(features, shape, size, feature_map)
    net = nn.Sequential(*entrance, *layers, nn.Sigmoid())
    initialise_parameters(net, generator)
    for layer in net.modules():
        if isinstance(layer, nn.ConvTranspose2d):
            bound = layer.weight[0].numel() ** -0.5
            for parameter in layer.parameters():
                nn.init.uniform_(parameter, -bound, bound, generator=generator)
    return net


def list_convolutions(
    features: int,
    shape: tuple[int, ...],
    size: DecoderSize,
    feature_map: tuple[int, int, int] | None,
) -> list[nn.Module]:
    """Return the layers from features, or a map of them, to images of this shape."""
    channels, *sides = shape
    if feature_map is None:
        doublings = max(2, ceil(log2(max(sides) / MAX_START_SIDE)))
        start = [-(-side // 2**doublings) for side in sides]
        dense = nn.Linear(features, size.channels * prod(start))
        layers: list[nn.Module] = [dense, nn.Unflatten(1, (size.channels, *start))]
    else:
        start = list(feature_map[1:])
        doublings = max(ceil(log2(side / less)) for side, less in zip(sides, start, strict=True))
        convolution = nn.Conv2d(feature_map[0], size.channels, 3, padding=1)
        layers = [nn.Unflatten(1, feature_map), convolution, nn.ReLU()]
    layers += [ResidualBlock(size.channels) for _ in range(size.blocks)]
    side, width = max(start), size.channels
    for _ in range(doublings - 1):
        side *= 2
        narrowed = max(MIN_CHANNELS, size.channels * FULL_WIDTH_SIDE // side)
        narrower = min(size.channels, narrowed)
        layers += [nn.ConvTranspose2d(width, narrower, 4, stride=2, padding=1), nn.ReLU()]
        width = narrower
    if doublings:
        layers.append(nn.ConvTranspose2d(width, channels, 4, stride=2, padding=1))
    else:
        layers.append(nn.Conv2d(width, channels, 3, padding=1))
    surplus = [less * 2**doublings - side for less, side in zip(start, sides, strict=True)]
    if any(surplus):  # margins below 0 cut images to their middle
        rows, columns = [(-(more // 2), more // 2 - more) for more in surplus]
        layers.append(nn.ZeroPad2d((*columns, *rows)))
    return layers


class Pace(NamedTuple):
    """Training pace of a network: passes over the images, Adam's first step, images in a batch."""

    epochs: int
    rate: float
    max_batch: int
    """Images in a batch, at most; of few images a quarter, 32 at least."""

    def batch_size(self, images: int) -> int:
        """Return the images of a batch."""
        return min(self.max_batch, max(32, images // 4))


FLAT_PACE = Pace(300, 1e-3, 256)
CONVOLUTION_PACE = Pace(50, 2e-3, 32)
"""Paces of the lowest error on held-out images of what was tried: with 256 in a batch a network of
convolutions stopped far from where it was going."""


@show_shapes
class Inverter(NamedTuple):
    """A trained decoder, the images that it learned from, and those that chose its epoch."""

    net: nn.Module
    training: Float[Tensor, "N C H W"]
    held_out: Float[Tensor, "V C H W"]


@use_full_precision()
def train_inverter(
    attacker: Attacker,
    size: DecoderSize = SMALL_DECODER,
    prepare: Callable[[Tensor], Tensor] = lambda z: z,
    share: float = 1.0,
) -> Inverter:
    """Train a network on the attacker's images, from prepared observations to images.

    By Adam, its step falling as a cosine. A fifth of the images is held out: the epoch with the
    lowest mean squared error on them is kept. The network ends on its fastest device; everything
    else stays where it is. Steps may be taken in bfloat16, see `fast_precision`; errors on held-out
    images and what the network rebuilds are computed in float32.

    Args:
        attacker: The attacker, whose images are two or more.
        size: Size of the network where images are not small.
        prepare: Prepares observations (N, F).
        share: As of `AttackClock.steps`.

    Returns:
        The network and the two parts of the images.

    Raises:
        DataError: There are fewer than two auxiliary images.
    """
    x, generator = attacker.auxiliary.x, attacker.generator
    training, held_out = split_held_out(x, generator)
    observe, observe_held_out = (
        make_observer(attacker.observation, images, generator) for images in (training, held_out)
    )
    first = observe_held_out(generator)
    draws = min(
        HELD_OUT_DRAWS,
        MAX_HELD_OUT_ROWS // len(held_out),
        MAX_HELD_OUT_VALUES // (first.shape[1] * len(training)),
        MAX_HELD_OUT_PIXELS // held_out.numel(),
    )
    draws = max(1, draws)
    others = [observe_held_out(generator) for _ in range(draws - 1)]
    held_out_observed = prepare(torch.cat([first, *others]))
    examples = prepare(torch.cat([observe(generator) for _ in range(draws)]))
    feature_map = find_map(attacker.observation, tuple(x.shape[1:]))
    net = build_decoder_network(
        examples, tuple(x.shape[1:]), generator, size, feature_map=feature_map
    )
    del examples, first, others
    device = fastest_device(net)
    net = net.to(device)
    images = training.to(device)
    net = net.to(memory_format=torch.channels_last)  # faster
    precision = fast_precision(net, device)
    pace = FLAT_PACE if is_flat(tuple(x.shape[1:])) else CONVOLUTION_PACE
    epochs = attacker.scale(pace.epochs)
    adam = torch.optim.Adam(net.parameters(), pace.rate, weight_decay=WEIGHT_DECAY)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(
        adam, epochs, eta_min=pace.rate * LAST_RATE_SHARE
    )
    best, lowest, best_epoch = net, torch.inf, 0
    batch_size = min(pace.batch_size(len(images)), choose_batch_size(images))
    work = BACKWARD_WORK * len(images)
    for epoch in attacker.clock.steps(epochs, work + len(held_out_observed), share):
        inputs = prepare(observe(generator)).to(device)
        order = torch.randperm(len(images), generator=generator).to(device)
        for part in attacker.clock.parts(torch.split(order, batch_size), work):
            adam.zero_grad()
            with compute_in(precision, device):
                rebuilt = net(inputs[part])
            (rebuilt.to(images.dtype) - images[part]).square().mean().backward()
            adam.step()
        cosine.step()
        error = measure_error(net, held_out_observed, held_out)
        attacker.curve.append(error)
        if error < lowest:
            best, lowest, best_epoch = deepcopy(net), error, epoch
        attacker.report("epoch", epoch, epochs, f"MSE {error:.4f} on held images")
        if epoch - best_epoch > max(MIN_PATIENCE, PATIENCE * epochs):
            break
    return Inverter(best, training, held_out)


def split_held_out(
    images: Shaped[Tensor, "A ..."], generator: torch.Generator
) -> tuple[Shaped[Tensor, "N ..."], Shaped[Tensor, "V ..."]]:
    """Return images, or their numbers, to learn from, and a random fifth to choose on.

    DataError on fewer than two.
    """
    if len(images) < 2:
        raise DataError(f"the attacker has {len(images)} images, needs 2; raise data.auxiliary")
    count = max(1, int(HELD_OUT_SHARE * len(images)))
    order = torch.randperm(len(images), generator=generator)
    return images[order[count:]], images[order[:count]]


def make_observer(
    observation: Observation,
    images: Float[Tensor, "A C H W"],
    generator: torch.Generator,
) -> Callable[[torch.Generator], Float[Tensor, "A F"]]:
    """Return a function that gives one observation per image.

    Fresh each time where the observation grants free queries; else each image is asked about
    `REPEATS` times, once and for all, and every call picks one of its answers at random.
    """
    if isinstance(observation, SmashedData):  # encoded once, sent afresh each time
        features, send = observation.encode(images), observation.send
        return lambda stream: send(features, stream)
    if FREE_QUERIES in observation.grants:
        return lambda stream: observation.sample(images, stream)
    answers = torch.stack([observation.sample(images, generator) for _ in range(REPEATS)])

    def pick_answers(stream: torch.Generator) -> Float[Tensor, "A F"]:
        which = torch.randint(REPEATS, (len(images),), generator=stream)
        return answers[which, torch.arange(len(images))]

    return pick_answers


@use_full_precision()
def apply_network(net: nn.Module, inputs: Float[Tensor, "N F"]) -> Float[Tensor, "N C H W"]:
    """Compute a decoder's images in chunks, without a gradient.

    Args:
        net: The decoder.
        inputs: Vectors (N, F).

    Returns:
        Images (N, C, H, W), on the device of the inputs.
    """
    device = next(net.parameters()).device
    with torch.no_grad():
        first = net(inputs[:1].to(device))
        at_once = choose_batch_size(first, IMAGES_AT_ONCE)
        parts = [net(part.to(device)) for part in torch.split(inputs, at_once)]
        return torch.cat(parts).to(inputs.device)


@use_full_precision()
@torch.no_grad()
def measure_error(
    net: nn.Module, inputs: Float[Tensor, "N F"], images: Float[Tensor, "V C H W"]
) -> float:
    """Compute a decoder's mean squared error on messages of images, which repeat in their order."""
    device = next(net.parameters()).device
    size = choose_batch_size(images, IMAGES_AT_ONCE)
    total = 0.0
    for draw in torch.split(inputs, len(images)):
        for part, originals in zip(torch.split(draw, size), torch.split(images, size), strict=True):
            gap = net(part.to(device)) - originals.to(device)
            total += float(gap.square().sum().double())
    return total / (len(inputs) * images[0].numel())


class Decoder(BaseAttack):
    """Train a network from messages back to images; the best epoch is kept.

    The attacker trains through the defence: every epoch sees messages with fresh noise.

    References:
        Xia et al., CVPR 2025 (the decoding attack).
    """

    name = "decoder"
    size = SMALL_DECODER

    def invert(self, attacker: Attacker, observed: Float[Tensor, "T F"]) -> Reconstructions:
        """Return one image per message."""
        return self.learn(attacker)(observed)

    def learn(self, attacker: Attacker) -> Rebuild:
        """Train the network once, for messages that arrive later."""
        net = train_inverter(attacker, self.size, self.prepare).net
        return lambda observed: apply_network(net, self.prepare(observed))

    def prepare(self, observed: Float[Tensor, "N F"]) -> Float[Tensor, "N F"]:
        """Return observations as the network takes them."""
        return observed


class LargeDecoder(Decoder):
    """The same with the larger network, where images are not small."""

    name = "decoder-large"
    size = LARGE_DECODER


class LogitInversion(Decoder):
    """Train a network from a service's answers back to images.

    Each of the attacker's images is asked about several times, because the service adds noise.

    References:
        Yang et al., CCS 2019 (inversion of prediction vectors).
    """

    name = "logit-inversion"
    observes = "private-logits"

    def prepare(self, observed: Float[Tensor, "N F"]) -> Float[Tensor, "N F"]:
        """Return logits with mean 0: a number added to all of them means nothing."""
        return observed - observed.mean(1, keepdim=True)
