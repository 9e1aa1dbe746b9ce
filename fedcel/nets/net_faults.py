"""Layers that keep a net from being measured, averaged or sampled, found without an image."""

from collections.abc import Mapping

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from fedcel.errors import join_first

MAX_NAMED = 5
"""Layers of a kind that are named; of more, the number is."""
_RANDOM_KINDS = (_DropoutNd, nn.MultiheadAttention, nn.RNNBase, nn.RReLU)
_RANDOM_NAMES = ("Drop", "StochasticDepth")
_CHANCES = ("p", "drop_prob", "dropout")  # attributes in which layers keep how often they drop
_STATISTICS = ("running_mean", "running_var", "weight", "bias", "eps")


def is_batch_norm(layer: nn.Module) -> bool:
    """Whether a layer is a BatchNorm, or a frozen one as torchvision and others have it."""
    is_frozen = "BatchNorm" in type(layer).__name__ and all(hasattr(layer, n) for n in _STATISTICS)
    return isinstance(layer, _BatchNorm) or is_frozen


def find_batch_layers(module: nn.Module) -> dict[str, nn.Module]:
    """Find the layers that normalise by the statistics of a batch in evaluation, too.

    Args:
        module: Any module.

    Returns:
        Layers by their path.
    """
    return {
        name: layer
        for name, layer in module.named_modules()
        if isinstance(layer, _BatchNorm) and layer.running_mean is None
    }


def draws_in_training(layer: nn.Module) -> bool:
    """Whether a layer draws random numbers in training, such as dropout with a chance above 0."""
    is_named = any(name in type(layer).__name__ for name in _RANDOM_NAMES)
    if not isinstance(layer, _RANDOM_KINDS) and not is_named:
        return False
    chances = [getattr(layer, name, None) for name in _CHANCES]
    return isinstance(layer, nn.RReLU) or any(
        isinstance(chance, float | int) and chance > 0 for chance in chances
    )


def switch_dropout_off(module: nn.Module) -> None:
    """Set the chance of all layers of a module that drop values to 0."""
    for layer in module.modules():
        if draws_in_training(layer):
            for name in _CHANCES:
                if hasattr(layer, name):
                    setattr(layer, name, 0.0)


def find_layer_faults(parts: Mapping[str, nn.Module]) -> list[str]:
    """Find all layers of encoder and head that cannot be trained in a federation.

    A sentence for each kind of fault, with the full paths of its layers.
    """
    layers = {
        ".".join(filter(None, (part, name))): layer
        for part, module in parts.items()
        for name, layer in module.named_modules()
    }
    norms = {name: layer for name, layer in layers.items() if is_batch_norm(layer)}
    random = {name: layer for name, layer in layers.items() if draws_in_training(layer)}
    faults = []
    if norms:
        faults.append(
            f"layer {name_layers(norms)}: statistics mix examples and cannot be averaged over "
            "clients or sampled; use nn.GroupNorm, or fedcel.nets.fold_batch_norms for a "
            "pretrained net"
        )
    if random:
        faults.append(
            f"layer {name_layers(random)}: draws from global random state and changes the law of "
            "what is sent; leave it out, or set its chance to 0"
        )
    return faults


def name_layers(layers: Mapping[str, object]) -> str:
    """Name layers by their paths and kinds.

    Args:
        layers: Layers by their paths.

    Returns:
        The first few, and how many there are beyond; empty where there are none.
    """
    names = [f"{name!r} ({type(layer).__name__})" for name, layer in layers.items()]
    return join_first(names, MAX_NAMED)
