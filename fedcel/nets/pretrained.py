"""Pretrained nets with BatchNorm, made fit to be averaged, sampled and sent."""

import copy
from typing import cast

import torch
from torch import fx, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils.fusion import fuse_conv_bn_eval, fuse_linear_bn_eval

from fedcel.errors import NetError

PRETRAINED_MARK = "keeps_parameters"
"""Attribute of a module whose parameters `fedcel.nets.build_net` leaves as they are."""


def fold_batch_norms(module: nn.Module) -> nn.Module:
    """Make a pretrained net fit for a federation: each BatchNorm becomes part of the layer before.

    With its running statistics a BatchNorm is an affine map a channel, so that of W x + b it is
    another convolution or linear layer. The copy trains on without statistics of batches, and its
    parameters are kept when a split net is built.

    Args:
        module: The net, with running statistics.

    Returns:
        A copy without BatchNorm; in evaluation it answers as `module` does, up to rounding.

    Raises:
        NetError: A BatchNorm follows no layer of its own, or has no statistics.
    """
    try:
        traced = fx.symbolic_trace(copy.deepcopy(module).eval())
    except (fx.proxy.TraceError, TypeError) as error:
        raise NetError(f"the net's graph cannot be followed: {error}; fold it by hand") from error
    layers = dict(traced.named_modules())
    for node in list(traced.graph.nodes):
        norm = layers.get(str(node.target)) if node.op == "call_module" else None
        if not isinstance(norm, _BatchNorm):
            continue
        before = cast(fx.Node, node.args[0])
        _replace_layer(layers, str(before.target), _fuse_layers(layers, before, node, norm))
        node.replace_all_uses_with(before)
        traced.graph.erase_node(node)
    traced.delete_all_unused_submodules()
    traced.recompile()
    return keep_parameters(traced)


def keep_parameters(module: nn.Module) -> nn.Module:
    """Mark a pretrained module: building a split net does not draw its parameters anew.

    Args:
        module: The module, with all its layers.

    Returns:
        The module itself.
    """
    setattr(module, PRETRAINED_MARK, True)
    return module


def _fuse_layers(
    layers: dict[str, nn.Module], before: fx.Node, node: fx.Node, norm: _BatchNorm
) -> nn.Module:
    """Return one layer for the layer before and its BatchNorm."""
    layer = layers.get(str(before.target)) if before.op == "call_module" else None
    if norm.running_mean is None:
        raise NetError(f"BatchNorm {node.target!r} has no running statistics; use nn.GroupNorm")
    fusible = nn.Conv1d | nn.Conv2d | nn.Conv3d | nn.Linear
    if len(before.users) > 1 or not isinstance(layer, fusible):
        raise NetError(
            f"BatchNorm {node.target!r} follows no convolution or linear layer of its own; "
            "replace it by nn.GroupNorm and train on"
        )
    with torch.no_grad():
        if isinstance(layer, nn.Linear):
            return fuse_linear_bn_eval(layer, norm)
        return fuse_conv_bn_eval(layer, norm)


def _replace_layer(layers: dict[str, nn.Module], path: str, layer: nn.Module) -> None:
    """Replace the module at a dotted path, in the net and in the table of its layers."""
    parent, _, name = path.rpartition(".")
    setattr(layers[parent], name, layer)
    layers[path] = layer
