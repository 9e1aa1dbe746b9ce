"""The split networks that settings name, and those of a user's own."""

from collections.abc import Callable
from functools import lru_cache
from itertools import pairwise
from math import prod
from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized
from torch.nn.utils.weight_norm import WeightNorm

from fedcel import plugins
from fedcel.errors import FedcelError, NetError
from fedcel.nets.cut import Cut
from fedcel.nets.gaussian_head import GaussianHead
from fedcel.nets.net_contract import NET_CHECKS, NetCase
from fedcel.nets.net_faults import find_layer_faults
from fedcel.nets.net_settings import NetSettings
from fedcel.nets.noise_scale import NoiseScale
from fedcel.nets.pretrained import PRETRAINED_MARK
from fedcel.nets.split_net import SplitNet

Builder = Callable[[tuple[int, ...], int, NetSettings], tuple[nn.Module, nn.Module]]
"""(shape of an image, classes, settings) -> (encoder, head)."""


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


def build_feature_layers(inputs: int, net: NetSettings) -> list[nn.Module]:
    """Return a hidden layer, the layer that makes D features, and their bound."""
    widths = [inputs, net.width, net.features]
    hidden, last = (nn.Linear(*pair) for pair in pairwise(widths))
    return [hidden, nn.ReLU(), last, BOUNDS[net.bound]()]


def build_mlp(
    shape: tuple[int, ...], classes: int, net: NetSettings
) -> tuple[nn.Module, nn.Module]:
    """Return a one-hidden-layer encoder and head for small images."""
    encoder = nn.Sequential(
        nn.Flatten(),
        *build_feature_layers(prod(shape), net),
    )
    return encoder, build_head(classes, net)


def build_cnn(
    shape: tuple[int, ...], classes: int, net: NetSettings
) -> tuple[nn.Module, nn.Module]:
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
        *build_feature_layers(32 * height * width // 16, net),
    )
    return encoder, build_head(classes, net)


def build_strided(
    shape: tuple[int, ...], classes: int, net: NetSettings
) -> tuple[nn.Module, nn.Module]:
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
        *build_feature_layers(32 * -(-height // 4) * -(-width // 4), net),
    )
    return encoder, build_head(classes, net)


def build_vgg11(
    shape: tuple[int, ...], classes: int, net: NetSettings
) -> tuple[nn.Module, nn.Module]:
    """Return VGG11's eight convolutions in five blocks, cut after block `net.cut-after`.

    Simonyan and Zisserman, ICLR 2015, table 1, A, with GroupNorm (8 channels a group) where VGG11
    with normalisation has BatchNorm, and one mean over positions before the head. A 1x1 convolution
    makes D = `net.features` values of the channels at the cut, another leads back (Xia et al., CVPR
    2025, send 8 channels of 8x8 after two blocks of 32x32 images: D = 512). `net.width` is the
    width of the second block, 128 in VGG11. For 3x32x32 images, D = 512 and 10 classes the encoder
    has 77 064 parameters and takes 41 million operations an image, the head 9 156 234 and 264
    million (a multiplication and an addition are two). NetError where `feature_map_size` gives one.
    """
    map_size = feature_map_size(shape, net)
    channels = net.features // prod(map_size)
    half, wide = net.width // 2, 4 * net.width
    blocks = [[half], [net.width], [2 * net.width] * 2, [wide] * 2, [wide] * 2]
    before, after = blocks[: net.cut_after], blocks[net.cut_after :]
    encoder = nn.Sequential(
        *build_blocks(shape[0], before),
        nn.Conv2d(before[-1][-1], channels, 1),
        nn.Flatten(),
        BOUNDS[net.bound](),
    )
    head = nn.Sequential(
        nn.Unflatten(1, (channels, *map_size)),
        nn.Conv2d(channels, before[-1][-1], 1),
        *build_blocks(before[-1][-1], after),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        build_head(classes, net.model_copy(update={"features": wide})),
    )
    return encoder, head


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


def build_blocks(channels: int, blocks: list[list[int]]) -> list[nn.Module]:
    """Return blocks of 3x3 convolutions with GroupNorm and ReLU, each ended by a pool of 2.

    A side of 1 stays 1, an odd one is rounded up.
    """
    layers: list[nn.Module] = []
    for widths in blocks:
        for width in widths:
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.GroupNorm(width // 8, width)]
            layers += [nn.ReLU()]
            channels = width
        layers.append(nn.MaxPool2d(2, ceil_mode=True))
    return layers


def build_head(classes: int, net: NetSettings) -> nn.Module:
    """Return a head of classes or of a number's bins, linear or with one hidden layer."""
    if net.head != "classes":
        if classes < 2:
            raise NetError(
                f"net.head is {net.head!r} and there is {classes} class: a number needs 2 bins or "
                "more; set net.head to 'classes'"
            )
        is_heteroscedastic = net.head == "heteroscedastic"
        return GaussianHead(
            net.features, classes, is_heteroscedastic=is_heteroscedastic, width=net.head_width
        )
    if net.head_width == 0:
        return nn.Linear(net.features, classes)
    return nn.Sequential(
        nn.Linear(net.features, net.head_width), nn.ReLU(), nn.Linear(net.head_width, classes)
    )


NET_BUILDERS: dict[str, Builder] = {
    "mlp": build_mlp,
    "cnn": build_cnn,
    "strided": build_strided,
    "vgg11": build_vgg11,
}
"""Builders of encoder and head by `net.name`; they take an image's shape, classes, settings."""


def build_net(
    net: NetSettings,
    shape: tuple[int, ...],
    classes: int,
    generator: torch.Generator,
    *,
    cut: Cut | None = None,
) -> SplitNet:
    """Build a split network and check that it can be trained in a federation.

    Args:
        net: The settings group `net`. A user's builder `package.module:object` is called with
            (shape, classes, settings) and returns (encoder, head).
        shape: The shape of an image, (C, H, W).
        classes: Number of logits.
        generator: The parameters are drawn from it.
        cut: What happens between encoder and head; without it Gaussian noise of `net.noise`.

    Returns:
        The net.

    Raises:
        NetError: Encoder and head do not fit together, or hold what cannot be averaged.
        PluginError: The import string leads nowhere, or a user's net breaks its contract.
    """
    if net.name not in NET_BUILDERS and ":" not in net.name:
        names = ", ".join(NET_BUILDERS)
        raise NetError(f"net.name is {net.name!r}, must be {names} or 'package.module:object'")
    if net.name not in NET_BUILDERS:
        plain = net.model_copy(update={"noise_shape": "one"})  # whose encoder and head are checked
        _check_own_net(_name_own_net(net), plain, shape, classes)
    return _assemble_net(net, shape, classes, generator, cut=cut)


def check_layers(net: NetSettings, shape: tuple[int, ...], classes: int) -> None:
    """Refuse a user's net whose layers cannot be trained, as soon as an image's shape is known.

    One that cannot be built for these classes, or such grey images, is left to `build_net`.

    Args:
        net: The settings group `net`; the project's own nets are taken as they are.
        shape: The shape of an image, (C, H, W).
        classes: Number of logits.

    Raises:
        NetError: Names all layers that cannot be trained, by their paths.
        PluginError: The import string leads nowhere.
    """
    if ":" not in net.name:
        return
    plugins.load_object(net.name)
    try:
        with torch.random.fork_rng(devices=[]):
            encoder, head = _call_own_builder(net, shape, classes)
    except FedcelError:
        return
    if faults := find_layer_faults({"encoder": encoder, "head": head}):
        part = _name_own_net(net)
        reasons = "\n".join(faults)
        raise NetError(f"{part}: {reasons}; {part.describe_remedy()}")


def _name_own_net(net: NetSettings) -> plugins.PartName:
    return plugins.PartName("net.name", net.name, "NetContract")


@lru_cache(maxsize=16)
def _check_own_net(
    part: plugins.PartName, net: NetSettings, shape: tuple[int, ...], classes: int
) -> None:
    """Hold a user's net to its contract."""

    def build(seed: int) -> SplitNet:
        return _assemble_net(net, shape, classes, torch.Generator().manual_seed(seed))

    first = build(1)  # what does not fit at all is refused at once
    faults = find_structure_faults(first.encoder, first.head)
    with torch.no_grad():
        answers = first.answer(first.encode(torch.full((2, *shape), 0.5)))
    if answers.shape[1] != classes:
        faults.append(f"the head returned {tuple(answers.shape)}, must be (B, {classes})")
    case = NetCase(build, shape, answers.shape[1])
    if not faults:
        plugins.check_contract(part, NET_CHECKS, case)
        return
    reasons = "\n".join([*faults, *map(str, plugins.find_breaks(NET_CHECKS, case)[0])])
    raise NetError(f"{part}: {reasons}; {part.describe_remedy()}")


def _assemble_net(
    net: NetSettings,
    shape: tuple[int, ...],
    classes: int,
    generator: torch.Generator,
    *,
    cut: Cut | None = None,
) -> SplitNet:
    """Return encoder, cut and head in one; NetError where they cannot be computed."""
    with torch.random.fork_rng(devices=[]):  # layers draw their first values from the global state
        torch.manual_seed(generator.initial_seed())
        if builder := NET_BUILDERS.get(net.name):
            encoder, head = builder(shape, classes, net)
            features = _check_net(encoder, head, shape)
            positions = prod(feature_map_size(shape, net)) if net.name == "vgg11" else 1
        else:
            encoder, head = _call_own_builder(net, shape, classes)
            features = _check_own_parts(encoder, head, shape, part=_name_own_net(net))
            positions = _read_positions(encoder, features)
    scale = build_noise_scale(net, features)
    split_net = SplitNet(
        encoder,
        head,
        cut or Cut(net.noise),
        features,
        noise_scale=scale,
        positions=positions,
    )
    initialise_parameters(split_net, generator)
    return split_net


def _read_positions(encoder: nn.Module, features: int) -> int:
    """Return the positions that a user's encoder says its channels have, 1 where it says none."""
    positions = getattr(encoder, "positions", 1)
    is_count = isinstance(positions, int) and positions > 0
    if not is_count or features % positions:
        raise NetError(
            f"the encoder's `positions` is {positions!r}, must be a divisor of its {features} "
            "features: rows times columns of each channel"
        )
    return int(positions)


def build_noise_scale(net: NetSettings, features: int) -> NoiseScale | None:
    """Build what says how much noise each feature gets.

    Args:
        net: The settings group `net`.
        features: D.

    Returns:
        A layer that starts at the same noise for all; None where nothing is learned.
    """
    if net.noise_shape not in ("feature", "image"):
        return None
    return NoiseScale(features, is_of_image=net.noise_shape == "image", limit=net.noise_limit)


def _call_own_builder(
    net: NetSettings, shape: tuple[int, ...], classes: int
) -> tuple[nn.Module, nn.Module]:
    """Return what a user's builder makes; NetError when it is none or does not make a pair."""
    builder = plugins.load_object(net.name)
    if not callable(builder):
        raise NetError(f"net.name {net.name!r} is no builder: it cannot be called")
    try:
        halves = builder(shape, classes, net)
    except FedcelError:
        raise
    except Exception as error:
        raise NetError(_name_own_net(net).describe_failure(error)) from error
    is_pair = isinstance(halves, tuple) and len(halves) == 2
    if not is_pair or not all(isinstance(half, nn.Module) for half in halves):
        raise NetError(f"net.name {net.name!r} must return (encoder, head), two torch modules")
    return cast("tuple[nn.Module, nn.Module]", halves)


def _check_own_parts(
    encoder: nn.Module,
    head: nn.Module,
    shape: tuple[int, ...],
    *,
    part: plugins.PartName,
) -> int:
    """Return D as `_check_net`, whose errors it lets name the user's net and its other faults."""
    if faults := find_structure_faults(encoder, head):  # in evaluation the rest can be checked, too
        encoder.eval(), head.eval()
    try:
        return _check_net(encoder, head, shape)
    except NetError as error:
        reasons = "\n".join([*faults, str(error)])
        raise NetError(f"{part}: {reasons}; {part.describe_remedy()}") from error
    except Exception as error:
        reasons = "\n".join([*faults, part.describe_failure(error)])
        raise NetError(reasons) from error


def initialise_parameters(module: nn.Module, generator: torch.Generator) -> None:
    """Redraw the parameters of linear and convolution layers: U(-1/sqrt(n), 1/sqrt(n)), n fan-in.

    Those of a module that `keep_parameters` marked stay.

    Args:
        module: Any module.
        generator: The only source of random numbers.
    """
    pretrained = {
        layer
        for root in module.modules()
        if hasattr(root, PRETRAINED_MARK)
        for layer in root.modules()
    }
    for layer in module.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d) and layer not in pretrained:
            bound = layer.weight[0].numel() ** -0.5
            for parameter in layer.parameters(recurse=False):
                nn.init.uniform_(parameter, -bound, bound, generator=generator)
            _draw_normalised_weight(layer, bound, generator)


def _draw_normalised_weight(
    layer: nn.Linear | nn.Conv2d, bound: float, generator: torch.Generator
) -> None:
    """Make the weight of a layer with weight_norm such as a plain layer's, norms included."""
    for hook in layer._forward_pre_hooks.values():
        if isinstance(hook, WeightNorm):
            direction = getattr(layer, f"{hook.name}_v").detach()
            norms = torch.norm_except_dim(direction, 2, hook.dim)
            getattr(layer, f"{hook.name}_g").data.copy_(norms)
    if is_parametrized(layer, "weight"):
        with torch.no_grad():
            weight = torch.empty_like(layer.weight).uniform_(-bound, bound, generator=generator)
            layer.weight = weight  # taken apart by the parametrization


def find_structure_faults(encoder: nn.Module, head: nn.Module) -> list[str]:
    """Find all layers and shared parameters that cannot be trained in a federation.

    Args:
        encoder: Images to features.
        head: Features to logits.

    Returns:
        A sentence for each kind of fault; none where all is well.
    """
    faults = find_layer_faults({"encoder": encoder, "head": head})
    shared = {*encoder.parameters()} & {*head.parameters()}
    if names := [name for name, parameter in head.named_parameters() if parameter in shared]:
        faults.append(
            f"the encoder has the head's parameter {', '.join(map(repr, names))}, too, which could "
            "not be frozen without it; give each its own"
        )
    return faults


def _check_net(encoder: nn.Module, head: nn.Module, shape: tuple[int, ...]) -> int:
    """Return D; NetError says what is wrong with the values."""
    before = copy_buffers(encoder, head)
    try:
        with torch.no_grad():
            z = encoder(torch.full((2, *shape), 0.5))
            if z.dim() != 2 or not z.isfinite().all():
                raise NetError(f"the encoder returned {tuple(z.shape)}, must be a finite (B, D)")
            logits = head(z)
    except RuntimeError as error:
        raise NetError(f"the net does not fit images of shape {shape}: {error}") from error
    after = copy_buffers(encoder, head)
    if moved := [n for n in after if n not in before or not torch.equal(before[n], after[n])]:
        raise NetError(
            f"buffer {', '.join(map(repr, moved))} is changed by a forward pass, and is not "
            "trained or averaged; leave it as it is, or make it a parameter"
        )
    if logits.dim() != 2 or len(logits) != 2:
        raise NetError(f"the head returned {tuple(logits.shape)}, must be (B, classes)")
    return int(z.shape[1])


def copy_buffers(encoder: nn.Module, head: nn.Module) -> dict[str, Tensor]:
    """Return copies of both halves' buffers by their paths."""
    halves = nn.ModuleDict({"encoder": encoder, "head": head})
    return {name: buffer.clone() for name, buffer in halves.named_buffers()}
