"""Pretrained nets with BatchNorm, made fit to be averaged, sampled and sent."""

import warnings
from collections import Counter
from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvTransposeNd
from torch.nn.utils.fusion import fuse_conv_bn_weights, fuse_linear_bn_weights
from torch.nn.utils.parametrize import is_parametrized, type_before_parametrizations
from torch.nn.utils.weight_norm import WeightNorm, remove_weight_norm

from fedcel.errors import NetError
from fedcel.nets.copy_module import copy_module
from fedcel.nets.encode_images import call_encoder
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
Maker = Fusible | _ConvTransposeNd


@usual_torch_state()
def fold_batch_norms(module: nn.Module, images: Float[Tensor, "B ..."]) -> nn.Module:
    """Make a pretrained net fit for a federation: each BatchNorm becomes part of the layer before.

    With its running statistics a BatchNorm is an affine map a channel, so that of W x + b it is
    another convolution or linear layer; an identity is left in its place. The copy is of the same
    class, trains on without statistics of batches, and its parameters are kept when a split net is
    built. It is held against the net on these images. A weight_norm of a folded layer is computed
    into its weight.

    Args:
        module: The net, with running statistics, or a part of one.
        images: Two or more that it takes; noise will do.

    Returns:
        A copy without BatchNorm; in evaluation it answers as `module` does, up to rounding.

    Raises:
        NetError: A BatchNorm follows no layer of its own, is called twice or not at all, or has no
            statistics.
    """
    folded = copy_module(module).eval()
    norms = {name: layer for name, layer in folded.named_modules() if is_batch_norm(layer)}
    if not norms:
        return keep_parameters(folded)
    with torch.no_grad():
        before = call_encoder(folded, images)
        layers = match_layers(folded, norms, images)
        for name, layer in layers.items():
            replace_layer(folded, layer, fuse_layers(layer, norms[name]))
            behind = [*norms[name].children()]  # timm's has its activation
            replace_layer(folded, norms[name], nn.Sequential(*behind) if behind else nn.Identity())
        after = call_encoder(folded, images)
    size, gap = float(before.abs().max()), float((before - after).abs().max())
    if not gap <= SAME_ANSWERS * size:
        raise NetError(
            f"the folded net answers otherwise: by {gap:.2g} where answers are up to {size:.2g}; a "
            "layer's output is used beside its BatchNorm, or a BatchNorm does more than its kind: "
            "replace it by nn.GroupNorm and train on"
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


def keep_parameters(module: nn.Module) -> nn.Module:
    """Mark a pretrained module: building a split net keeps its parameters.

    Args:
        module: The module, with all its layers.

    Returns:
        The module itself.
    """
    setattr(module, PRETRAINED_MARK, True)
    return module


def match_layers(
    module: nn.Module, norms: dict[str, nn.Module], images: Float[Tensor, "B ..."]
) -> dict[str, Fusible]:
    """Return the layer before each BatchNorm; NetError names all that have none of their own."""
    calls: Counter[nn.Module] = Counter()
    makers: dict[int, tuple[nn.Module, object]] = {}  # by the tensor made, which is kept alive
    sources: dict[nn.Module, nn.Module] = {}

    def note_call(layer: nn.Module, inputs: tuple[object, ...], output: object) -> None:
        calls[layer] += 1
        if isinstance(layer, Maker):
            makers[id(output)] = layer, output
        elif inputs and id(inputs[0]) in makers:
            sources[layer] = makers[id(inputs[0])][0]

    watched = [part for part in module.modules() if isinstance(part, Maker)]
    hooks = [part.register_forward_hook(note_call) for part in [*watched, *norms.values()]]
    try:
        call_encoder(module, images)
    finally:
        for hook in hooks:
            hook.remove()
    names = {layer: name for name, layer in module.named_modules()}
    faults = []
    for name, norm in norms.items():
        source = sources.get(norm)
        shared = [layer for layer in (source, norm) if layer is not None and calls[layer] > 1]
        if getattr(norm, "running_mean", None) is None:
            faults.append(f"BatchNorm {name!r} has no running statistics")
        elif not calls[norm]:
            faults.append(f"BatchNorm {name!r} is not called")
        elif source is None:
            faults.append(f"BatchNorm {name!r} follows no convolution or linear layer of its own")
        elif not isinstance(source, Fusible):
            faults.append(
                f"BatchNorm {name!r} follows {names[source]!r}, a transposed convolution, which is "
                "not folded"
            )
        elif shared or list(sources.values()).count(source) > 1:
            faults.append(
                f"BatchNorm {name!r} after {names[source]!r}: "
                f"{' and '.join(repr(names[layer]) for layer in shared or [source])} serve twice"
            )
    if faults:
        more = f"; and {len(faults) - MAX_NAMED} more" if len(faults) > MAX_NAMED else ""
        raise NetError(
            f"{'; '.join(faults[:MAX_NAMED])}{more}; take out what is not called, replace the "
            "others by nn.GroupNorm and train on"
        )
    return {name: cast("Fusible", sources[norm]) for name, norm in norms.items()}


def fuse_layers(layer: Fusible, norm: nn.Module) -> Fusible:
    """Return one plain layer for a layer and the BatchNorm behind it."""
    weight, bias = layer.weight, layer.bias
    for hook in list(layer._forward_pre_hooks.values()):
        if isinstance(hook, WeightNorm):
            remove_weight_norm(layer, hook.name)
    if is_parametrized(layer):  # by hand: `remove_parametrizations` changes the net's class, too
        layer.__class__ = type_before_parametrizations(layer)
        del layer._modules["parametrizations"]
    statistics = (norm.running_mean, norm.running_var, norm.eps, norm.weight, norm.bias)
    fuse = fuse_linear_bn_weights if isinstance(layer, nn.Linear) else fuse_conv_bn_weights
    layer.weight, layer.bias = fuse(weight, bias, *statistics)  # type: ignore[arg-type]
    layer.bias.requires_grad_(layer.weight.requires_grad)  # PyTorch freezes a bias that was none
    return layer


def replace_layer(module: nn.Module, layer: nn.Module, by: nn.Module) -> None:
    """Replace a layer wherever a module holds it."""
    for part in list(module.modules()):
        for name, child in part._modules.items():
            if child is layer:
                part._modules[name] = by
