"""Pretrained nets with BatchNorm, made fit to be averaged, sampled and sent."""

import warnings
from collections import Counter
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_weights, fuse_linear_bn_weights
from torch.nn.utils.parametrize import is_parametrized, type_before_parametrizations
from torch.nn.utils.weight_norm import WeightNorm, remove_weight_norm

from fedcel.errors import NetError, join_first
from fedcel.nets.copy_module import copy_module
from fedcel.nets.encode_images import call_encoder, evaluation_mode
from fedcel.nets.net_faults import MAX_NAMED, is_batch_norm
from fedcel.torch_state import usual_torch_state

PRETRAINED_MARK = "keeps_parameters"
"""Attribute of a module whose parameters `fedcel.nets.build_net` leaves as they are."""
SAME_ANSWERS = 1e-3
"""Answers that differ by more after folding, as a share of their size, are others."""
DEAD_SPREAD = 1e-3
"""Answers to images that differ by less, as a share of their size, say nothing of the image."""
LEAST_SIZE = 0.1
"""Smaller answers count as of this size: a layer behind them takes them for constant."""

Fusible = nn.Conv1d | nn.Conv2d | nn.Conv3d | nn.Linear


@usual_torch_state()
def fold_batch_norms(module: nn.Module, images: Float[Tensor, "B ..."]) -> nn.Module:
    """Make a pretrained net fit for a federation: no BatchNorm is left in it.

    With its running statistics a BatchNorm is an affine map a channel. Where it follows a
    convolution or linear layer of its own, it becomes part of that layer, and an identity is left
    in its place; a weight_norm of a folded layer is computed into its weight. Elsewhere, as before
    a convolution, a `ChannelAffine` takes its place. The copy is of the same class, trains on
    without statistics of batches, and its parameters are kept when a split net is built. It is held
    against the net on these images.

    Args:
        module: The net, with running statistics, or a part of one.
        images: Two or more that it takes; noise will do.

    Returns:
        A copy without BatchNorm; in evaluation it answers as `module` does, up to rounding.

    Raises:
        NetError: A BatchNorm is not called, has no statistics, or does more than its kind.
    """
    size = gap = 0.0
    with torch.no_grad(), evaluation_mode(module):
        before = call_encoder(module, images)
    for may_fuse in (True, False):  # a layer's output may be used beside its BatchNorm
        folded = copy_module(module).eval()
        with torch.no_grad():
            replace_batch_norms(folded, images, may_fuse=may_fuse)
            after = call_encoder(folded, images)
        size, gap = float(before.abs().max()), float((before - after).abs().max())
        if gap <= SAME_ANSWERS * size:
            break
    else:
        raise NetError(
            f"the folded net answers otherwise: by {gap:.2g} where answers are up to {size:.2g}; a "
            "BatchNorm does more than its kind: replace it by nn.GroupNorm and train on"
        )
    spread = float((before - before[:1]).abs().max())
    if spread <= DEAD_SPREAD * max(size, LEAST_SIZE):
        warnings.warn(
            f"the net says nothing of an image: answers to {len(before)} images differ by "
            f"{spread:.2g} of {size:.2g}; its BatchNorms may hold no statistics of a training: "
            "load its weights before folding",
            stacklevel=3,
        )
    return keep_parameters(folded)


class ChannelAffine(nn.Module):
    """Affine map of each channel, which is trained: a BatchNorm with its running statistics.

    Args:
        norm: The BatchNorm.
        dimensions: Of a batch that it gets: 2 for (B, C), 4 for (B, C, H, W).
    """

    def __init__(self, norm: nn.Module, dimensions: int) -> None:
        super().__init__()
        statistics = list_statistics(norm)
        unit = torch.ones_like(statistics[0])[:, None]
        scale, shift = fuse_linear_bn_weights(unit, None, *statistics)
        is_trained = getattr(norm.weight, "requires_grad", True)  # none: of a BatchNorm without
        shape = -1, *[1] * (dimensions - 2)
        self.scale, self.shift = (
            nn.Parameter(values.detach().reshape(shape), is_trained) for values in (scale, shift)
        )

    def forward(self, x: Float[Tensor, "B C ..."]) -> Float[Tensor, "B C ..."]:
        """Scale and shift."""
        return x * self.scale + self.shift


def keep_parameters(module: nn.Module) -> nn.Module:
    """Mark a pretrained module: building a split net keeps its parameters.

    Args:
        module: The module, with all its layers.

    Returns:
        The module itself.
    """
    setattr(module, PRETRAINED_MARK, True)
    return module


def replace_batch_norms(
    module: nn.Module, images: Float[Tensor, "B ..."], *, may_fuse: bool
) -> None:
    """Replace all BatchNorms; without `may_fuse` none becomes part of the layer before."""
    norms = {name: layer for name, layer in module.named_modules() if is_batch_norm(layer)}
    for name, (layer, dimensions) in match_layers(module, norms, images).items():
        layers = [*norms[name].children()]  # timm's has its activation
        if layer is not None and may_fuse:
            replace_layer(module, layer, fuse_layers(layer, norms[name]))
        else:
            layers.insert(0, ChannelAffine(norms[name], dimensions))
        by = layers[0] if len(layers) == 1 else nn.Sequential(*layers) if layers else nn.Identity()
        replace_layer(module, norms[name], by)


def match_layers(
    module: nn.Module, norms: dict[str, nn.Module], images: Float[Tensor, "B ..."]
) -> dict[str, tuple[Fusible | None, int]]:
    """Return for each BatchNorm the layer before, if it has one of its own, and its dimensions.

    NetError names all BatchNorms that are not called, or have no running statistics.
    """
    if not norms:
        return {}
    calls: Counter[nn.Module] = Counter()
    makers: dict[int, tuple[nn.Module, object]] = {}  # by the tensor made, which is kept alive
    sources: dict[nn.Module, nn.Module] = {}
    dimensions: dict[nn.Module, int] = {}

    def note_call(layer: nn.Module, inputs: tuple[object, ...], output: object) -> None:
        calls[layer] += 1
        if isinstance(layer, Fusible):
            makers[id(output)] = layer, output
            return
        dimensions[layer] = cast("Tensor", output).dim()
        if inputs and id(inputs[0]) in makers:
            sources[layer] = makers[id(inputs[0])][0]

    watched = [part for part in module.modules() if isinstance(part, Fusible)]
    hooks = [part.register_forward_hook(note_call) for part in [*watched, *norms.values()]]
    try:
        call_encoder(module, images)
    finally:
        for hook in hooks:
            hook.remove()
    faults = [
        f"BatchNorm {name!r} {reason}"
        for name, norm in norms.items()
        for is_fault, reason in (
            (getattr(norm, "running_mean", None) is None, "has no running statistics"),
            (not calls[norm], "is not called"),
        )
        if is_fault
    ]
    if faults:
        raise NetError(
            f"{join_first(faults, MAX_NAMED, '; ')}; take out what is not called, replace the "
            "others by nn.GroupNorm and train on"
        )
    uses = Counter(sources.values())
    return {
        name: (
            cast("Fusible", source)
            if (source := sources.get(norm)) and calls[source] == calls[norm] == uses[source] == 1
            else None,
            dimensions[norm],
        )
        for name, norm in norms.items()
    }


def fuse_layers(layer: Fusible, norm: nn.Module) -> Fusible:
    """Return one plain layer for a layer and the BatchNorm behind it."""
    weight, bias = layer.weight, layer.bias
    for hook in list(layer._forward_pre_hooks.values()):
        if isinstance(hook, WeightNorm):
            remove_weight_norm(layer, hook.name)
    if is_parametrized(layer):  # by hand: `remove_parametrizations` changes the net's class, too
        layer.__class__ = type_before_parametrizations(layer)
        del layer._modules["parametrizations"]
    fuse = fuse_linear_bn_weights if isinstance(layer, nn.Linear) else fuse_conv_bn_weights
    layer.weight, layer.bias = fuse(weight, bias, *list_statistics(norm))
    layer.bias.requires_grad_(layer.weight.requires_grad)  # PyTorch freezes a bias that was none
    return layer


def list_statistics(norm: nn.Module) -> tuple[Any, ...]:
    """Return what a BatchNorm computes with, in the order that PyTorch's fusions take it."""
    mean = cast(Tensor, norm.running_mean)
    weight = torch.ones_like(mean) if norm.weight is None else norm.weight
    bias = torch.zeros_like(mean) if norm.bias is None else norm.bias
    return mean, norm.running_var, norm.eps, weight, bias


def replace_layer(module: nn.Module, layer: nn.Module, by: nn.Module) -> None:
    """Replace a layer wherever a module holds it."""
    for part in list(module.modules()):
        for name, child in part._modules.items():
            if child is layer:
                part._modules[name] = by
