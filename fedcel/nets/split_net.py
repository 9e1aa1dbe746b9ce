"""A network cut in two: encoder, noise at the cut, head."""

from collections.abc import Callable
from math import prod
from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedcel import plugins
from fedcel.errors import NetError
from fedcel.nets.cut import Cut
from fedcel.nets.pretrained import KEPT
from fedcel.settings import NetSettings

Potential = Callable[[Tensor, Tensor], Tensor]
Builder = Callable[[tuple[int, ...], int, NetSettings], tuple[nn.Module, nn.Module]]


class SplitNet(nn.Module):
    """Encoder f on the device, head g on the server, the cut's noise between.

    Images are (B, C, H, W) in [0, 1], smashed data (B, D), logits (B, classes). A head may bring
    its own `potential(answers, labels)`, the mean negative log-likelihood of a batch in nats; the
    cross-entropy of logits is what others are trained on.
    """

    def __init__(self, encoder: nn.Module, head: nn.Module, cut: Cut, features: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = head
        self.cut = cut
        self.features = features
        self.potential: Potential = getattr(head, "potential", cross_entropy)

    def encode(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D"]:
        """Return z, before any noise."""
        return cast(Tensor, self.encoder(images))

    def add_noise(
        self, z: Float[Tensor, "B D"], generator: torch.Generator
    ) -> Float[Tensor, "B D"]:
        """Return the messages z~, the cut's noise drawn afresh."""
        return self.cut.disturb(z, generator)

    def answer(self, message: Float[Tensor, "B D"]) -> Float[Tensor, "B K"]:
        """Return the head's logits for smashed data as it was received."""
        return cast(Tensor, self.head(message))


class NormBound(nn.Module):
    """Scale z down to at most unit root mean square; short vectors pass unchanged."""

    def forward(self, z: Float[Tensor, "B D"]) -> Float[Tensor, "B D"]:
        """Return z with |z|^2 <= D."""
        rms = z.square().mean(1, keepdim=True).sqrt()
        return z / rms.clamp_min(1.0)


BOUNDS: dict[str, Callable[[], nn.Module]] = {
    "sigmoid": nn.Sigmoid,
    "norm": NormBound,
    "none": nn.Identity,
}


def mlp(shape: tuple[int, ...], classes: int, net: NetSettings) -> tuple[nn.Module, nn.Module]:
    """Return a one-hidden-layer encoder and head for small images."""
    inputs = shape[0] * shape[1] * shape[2]
    encoder = nn.Sequential(
        nn.Flatten(),
        nn.Linear(inputs, net.width),
        nn.ReLU(),
        nn.Linear(net.width, net.features),
        BOUNDS[net.bound](),
    )
    return encoder, build_head(classes, net)


def cnn(shape: tuple[int, ...], classes: int, net: NetSettings) -> tuple[nn.Module, nn.Module]:
    """Return two convolutions with GroupNorm and pooling, then D features; for 28 or 32 px."""
    channels, height, width = shape
    if height % 4 or width % 4:
        raise NetError(f"images are {height}x{width}; 'cnn' pools twice, sides must divide by 4")
    encoder = nn.Sequential(
        nn.Conv2d(channels, 16, 3, padding=1),
        nn.GroupNorm(4, 16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.GroupNorm(8, 32),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * height * width // 16, net.width),
        nn.ReLU(),
        nn.Linear(net.width, net.features),
        BOUNDS[net.bound](),
    )
    return encoder, build_head(classes, net)


def strided(shape: tuple[int, ...], classes: int, net: NetSettings) -> tuple[nn.Module, nn.Module]:
    """Return two convolutions of stride 2 with GroupNorm: an eighth of `cnn`'s time on a CPU."""
    channels, height, width = shape
    encoder = nn.Sequential(
        nn.Conv2d(channels, 16, 5, stride=2, padding=2),
        nn.GroupNorm(4, 16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.GroupNorm(8, 32),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * -(-height // 4) * -(-width // 4), net.width),
        nn.ReLU(),
        nn.Linear(net.width, net.features),
        BOUNDS[net.bound](),
    )
    return encoder, build_head(classes, net)


def vgg11(shape: tuple[int, ...], classes: int, net: NetSettings) -> tuple[nn.Module, nn.Module]:
    """Return VGG11's eight convolutions in five blocks, cut after block `net.cut-after`.

    Simonyan and Zisserman, ICLR 2015, table 1, A, with GroupNorm (8 channels a group) where VGG11
    with normalisation has BatchNorm, and one mean over positions before the head. A 1x1 convolution
    makes D = `net.features` values of the channels at the cut, another leads back (Xia et al., CVPR
    2025, send 8 channels of 8x8 after two blocks of 32x32 images: D = 512). `net.width` is the
    width of the second block, 128 in VGG11. For 3x32x32 images, D = 512 and 10 classes the encoder
    has 77 064 parameters and takes 41 million operations an image, the head 9 156 234 and 264
    million (a multiplication and an addition are two). NetError where `feature_map_size` gives one.
    """
    places = feature_map_size(shape, net)
    sent = net.features // prod(places)
    half, wide = net.width // 2, 4 * net.width
    plan = [[half], [net.width], [2 * net.width] * 2, [wide] * 2, [wide] * 2]
    before, after = plan[: net.cut_after], plan[net.cut_after :]
    encoder = nn.Sequential(
        *build_blocks(shape[0], before),
        nn.Conv2d(before[-1][-1], sent, 1),
        nn.Flatten(),
        BOUNDS[net.bound](),
    )
    answering = nn.Sequential(
        nn.Unflatten(1, (sent, *places)),
        nn.Conv2d(sent, before[-1][-1], 1),
        *build_blocks(before[-1][-1], after),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        build_head(classes, net.model_copy(update={"features": wide})),
    )
    return encoder, answering


def feature_map_size(shape: tuple[int, ...], net: NetSettings) -> tuple[int, int]:
    """Return height and width at the cut of `vgg11`; NetError where images or D do not fit."""
    _, height, width = shape
    if height % 8 or width % 8:
        raise NetError(f"images are {height}x{width}, sides must divide by 8; set data.size to 32")
    if net.width % 16:
        raise NetError(f"net.width is {net.width}, must be a multiple of 16; try 64 or 128")
    rows, columns = height >> net.cut_after, width >> net.cut_after
    if net.features % (rows * columns):
        raise NetError(
            f"net.features is {net.features}, must be a multiple of {rows * columns}, the "
            f"{rows}x{columns} positions at the cut; {8 * rows * columns} sends 8 channels"
        )
    return rows, columns


def build_blocks(channels: int, plan: list[list[int]]) -> list[nn.Module]:
    """Return blocks of 3x3 convolutions with GroupNorm and ReLU, each ended by a pool of 2.

    A side of 1 stays 1, an odd one is rounded up.
    """
    layers: list[nn.Module] = []
    for block in plan:
        for wide in block:
            layers += [nn.Conv2d(channels, wide, 3, padding=1), nn.GroupNorm(wide // 8, wide)]
            layers += [nn.ReLU()]
            channels = wide
        layers.append(nn.MaxPool2d(2, ceil_mode=True))
    return layers


def build_head(classes: int, net: NetSettings) -> nn.Module:
    """Return a linear head, or one with a hidden layer of `net.head-width`."""
    if net.head_width == 0:
        return nn.Linear(net.features, classes)
    return nn.Sequential(
        nn.Linear(net.features, net.head_width), nn.ReLU(), nn.Linear(net.head_width, classes)
    )


BUILDERS: dict[str, Builder] = {"mlp": mlp, "cnn": cnn, "strided": strided, "vgg11": vgg11}


def build_net(
    net: NetSettings,
    shape: tuple[int, ...],
    classes: int,
    generator: torch.Generator,
    cut: Cut | None = None,
) -> SplitNet:
    """Return a checked split network with parameters drawn from `generator`.

    Without a `cut` there is Gaussian noise of `net.noise`. A user's builder
    `package.module:object` takes (shape (C, H, W), classes, settings) and returns (encoder, head).
    Raises NetError when they do not fit together.
    """
    if net.name not in BUILDERS and ":" not in net.name:
        raise NetError(
            f"net.name is {net.name!r}, must be {', '.join(BUILDERS)} or 'package.module:object'"
        )
    builder = BUILDERS.get(net.name) or cast(Builder, plugins.load_object(net.name))
    with torch.random.fork_rng(devices=[]):  # layers draw their first values from the global state
        torch.manual_seed(generator.initial_seed())
        encoder, classifier = call_builder(builder, net.name, shape, classes, net)
    features = check_net(encoder, classifier, shape, classes)
    model = SplitNet(encoder, classifier, cut or Cut(net.noise), features)
    initialise_parameters(model, generator)
    return model


def call_builder(
    builder: object, name: str, shape: tuple[int, ...], classes: int, net: NetSettings
) -> tuple[nn.Module, nn.Module]:
    """Return what a builder makes; NetError when it is none or does not make a pair."""
    if not callable(builder):
        raise NetError(f"net.name {name!r} is no builder: it cannot be called")
    try:
        encoder, classifier = builder(shape, classes, net)
    except (TypeError, ValueError) as error:
        raise NetError(f"net.name {name!r}: (shape, classes, settings) gave {error}") from error
    if not (isinstance(encoder, nn.Module) and isinstance(classifier, nn.Module)):
        raise NetError(f"net.name {name!r} must return (encoder, head), two torch modules")
    return encoder, classifier


def initialise_parameters(model: nn.Module, generator: torch.Generator) -> None:
    """Redraw weights of linear and convolution layers, U(-1/sqrt(n), 1/sqrt(n)), n the fan-in.

    Not those of a module that `fedcel.nets.pretrained.keep_parameters` marked.
    """
    spared = {one for root in model.modules() if hasattr(root, KEPT) for one in root.modules()}
    for layer in model.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d) and layer not in spared:
            bound = layer.weight[0].numel() ** -0.5
            for parameter in layer.parameters(recurse=False):
                nn.init.uniform_(parameter, -bound, bound, generator=generator)


def check_net(
    encoder: nn.Module, classifier: nn.Module, shape: tuple[int, ...], classes: int
) -> int:
    """Return D; NetError on buffers, wrong shapes or undefined values says why."""
    for part in (encoder, classifier):
        for name, layer in part.named_modules():
            if isinstance(layer, nn.modules.batchnorm._BatchNorm):
                raise NetError(
                    f"layer {name!r} is {type(layer).__name__}: its running statistics mix "
                    "examples and cannot be averaged over clients or sampled; use nn.GroupNorm, "
                    "or fedcel.nets.pretrained.fold_batch_norms for a pretrained net"
                )
            if isinstance(layer, nn.modules.dropout._DropoutNd):
                raise NetError(
                    f"layer {name!r} is {type(layer).__name__}: it draws from global random state "
                    "and changes the law of what is sent; leave it out"
                )
        for name, _ in part.named_buffers():
            raise NetError(f"buffer {name!r} is not trained or averaged; make it a parameter")
    common = {*encoder.parameters()} & {*classifier.parameters()}
    for name, parameter in classifier.named_parameters():
        if parameter in common:
            raise NetError(
                f"the encoder has the head's parameter {name!r}, too, which could not be frozen "
                "without it; give each its own"
            )
    try:
        return probe_net(encoder, classifier, shape, classes)
    except RuntimeError as error:
        raise NetError(f"the net does not fit images of shape {shape}: {error}") from error


def probe_net(
    encoder: nn.Module, classifier: nn.Module, shape: tuple[int, ...], classes: int
) -> int:
    """Return D of two grey images; NetError on wrong shapes or undefined values."""
    with torch.no_grad():
        z = encoder(torch.full((2, *shape), 0.5))
        if z.dim() != 2 or not z.isfinite().all():
            raise NetError(f"the encoder returned {tuple(z.shape)}, must be a finite (B, D)")
        logits = classifier(z)
    if logits.shape != (2, classes):
        raise NetError(f"the head returned {tuple(logits.shape)}, must be (B, {classes})")
    return int(z.shape[1])
