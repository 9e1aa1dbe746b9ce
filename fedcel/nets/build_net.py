"""The split networks that settings name, and those of a user's own."""

from functools import lru_cache

import torch
from torch import nn
from torch.nn.utils.parametrize import is_parametrized
from torch.nn.utils.weight_norm import WeightNorm

from fedcel import plugins
from fedcel.errors import FedcelError, NetError
from fedcel.nets.cut import Cut, NoiseShape, build_noise_scale
from fedcel.nets.imported_net import ImportedNet
from fedcel.nets.net_contract import NET_CHECKS, NetCase
from fedcel.nets.net_faults import find_layer_faults
from fedcel.nets.net_settings import POSITIONS, NetSettings
from fedcel.nets.pretrained import PRETRAINED_MARK
from fedcel.nets.split_net import SplitNet


def build_net(
    net: NetSettings,
    shape: tuple[int, ...],
    classes: int,
    generator: torch.Generator,
    *,
    cut: Cut | None = None,
    noise_shape: NoiseShape = "one",
) -> SplitNet:
    """Build a split network and check that it can be trained in a federation.

    Args:
        net: The kind of net.
        shape: The shape of an image, (C, H, W).
        classes: Number of logits.
        generator: The parameters are drawn from it.
        cut: What happens between encoder and head; without it Gaussian noise of `net.noise`.
        noise_shape: Whether the standard deviations of the noise are learned, and of what.

    Returns:
        The net.

    Raises:
        NetError: Encoder and head do not fit together, or hold what cannot be averaged.
        PluginError: The import string leads nowhere, or a user's net breaks its contract.
    """
    if isinstance(net, ImportedNet):
        _check_own_net(net, shape, classes)
    return _assemble_net(net, shape, classes, generator, cut=cut, noise_shape=noise_shape)


def check_layers(net: NetSettings, shape: tuple[int, ...], classes: int) -> None:
    """Refuse a user's net whose layers cannot be trained, as soon as an image's shape is known.

    One that cannot be built for these classes, or such grey images, is left to `build_net`.

    Args:
        net: The kind of net; the project's own are taken as they are.
        shape: The shape of an image, (C, H, W).
        classes: Number of logits.

    Raises:
        NetError: Names all layers that cannot be trained, by their paths.
        PluginError: The import string leads nowhere.
    """
    if not isinstance(net, ImportedNet):
        return
    plugins.load_object(net.name)
    try:
        with torch.random.fork_rng(devices=[]):
            encoder, head = net.build(shape, classes)
    except FedcelError:
        return
    if faults := find_layer_faults({"encoder": encoder, "head": head}):
        raise _name_faults(net.part, faults)


def _name_faults(part: plugins.PartName, faults: list[str]) -> NetError:
    reasons = "\n".join(faults)
    return NetError(f"{part}: {reasons}; {part.describe_remedy()}")


@lru_cache(maxsize=16)
def _check_own_net(net: ImportedNet, shape: tuple[int, ...], classes: int) -> None:

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
        plugins.check_contract(net.part, NET_CHECKS, case)
        return
    raise _name_faults(net.part, [*faults, *map(str, plugins.find_breaks(NET_CHECKS, case)[0])])


def _assemble_net(
    net: NetSettings,
    shape: tuple[int, ...],
    classes: int,
    generator: torch.Generator,
    *,
    cut: Cut | None = None,
    noise_shape: NoiseShape = "one",
) -> SplitNet:
    """Return encoder, cut and head in one; NetError where they cannot be computed."""
    with torch.random.fork_rng(devices=[]):  # layers draw their first values from the global state
        torch.manual_seed(generator.initial_seed())
        encoder, head = net.build(shape, classes)
        if isinstance(net, ImportedNet):
            features = _check_own_parts(encoder, head, shape, net.part)
        else:
            features = _check_net(encoder, head, shape)
    split_net = SplitNet(
        encoder,
        head,
        cut or Cut(net.noise),
        features,
        noise_scale=build_noise_scale(noise_shape, features),
        positions=_read_positions(encoder, features),
    )
    initialise_parameters(split_net, generator)
    return split_net


def _read_positions(encoder: nn.Module, features: int) -> int:
    """Return the positions that an encoder says its channels have, 1 where it says none."""
    positions = getattr(encoder, POSITIONS, 1)
    is_count = isinstance(positions, int) and positions > 0
    if not is_count or features % positions:
        raise NetError(
            f"the encoder's `positions` is {positions!r}, must be a divisor of its {features} "
            "features: rows times columns of each channel"
        )
    return int(positions)


def _check_own_parts(
    encoder: nn.Module, head: nn.Module, shape: tuple[int, ...], part: plugins.PartName
) -> int:
    """Return D as `_check_net`, whose errors it lets name the user's net and its other faults."""
    if faults := find_structure_faults(encoder, head):  # in evaluation the rest can be checked, too
        encoder.eval(), head.eval()
    try:
        return _check_net(encoder, head, shape)
    except NetError as error:
        raise _name_faults(part, [*faults, str(error)]) from error
    except Exception as error:
        raise NetError("\n".join([*faults, part.describe_failure(error)])) from error


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
    """Find all layers and shared parameters that cannot be trained in a federation."""
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
    buffers = nn.ModuleDict({"encoder": encoder, "head": head}).named_buffers
    before = {name: buffer.clone() for name, buffer in buffers()}
    try:
        with torch.no_grad():
            z = encoder(torch.full((2, *shape), 0.5))
            if z.dim() != 2 or not z.isfinite().all():
                raise NetError(f"the encoder returned {tuple(z.shape)}, must be a finite (B, D)")
            logits = head(z)
    except RuntimeError as error:
        raise NetError(f"the net does not fit images of shape {shape}: {error}") from error
    if moved := [n for n, b in buffers() if n not in before or not torch.equal(before[n], b)]:
        raise NetError(
            f"buffer {', '.join(map(repr, moved))} is changed by a forward pass, and is not "
            "trained or averaged; leave it as it is, or make it a parameter"
        )
    if logits.dim() != 2 or len(logits) != 2:
        raise NetError(f"the head returned {tuple(logits.shape)}, must be (B, classes)")
    return int(z.shape[1])
