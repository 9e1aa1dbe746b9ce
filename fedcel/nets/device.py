"""Device for training and attacks: a GPU for convolutions where PyTorch finds one.

Random numbers are drawn on the processor in either case, and products on a GPU stay in float32,
never in TF32: results are the same up to the order of sums. Dense nets, whose operations are small,
stay on the processor.
"""

from collections.abc import Mapping

import torch
from torch import nn

CPU = torch.device("cpu")
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose2d)


def fastest_device(net: nn.Module) -> torch.device:
    """Choose the device to train a net on.

    Args:
        net: The net.

    Returns:
        PyTorch's GPU for a net with convolutions, else the processor. `CUDA_VISIBLE_DEVICES=` in
        the environment hides a GPU.
    """
    return torch.device("cuda") if has_convolutions(net) and torch.cuda.is_available() else CPU


def has_convolutions(net: nn.Module) -> bool:
    """Whether a layer of a net convolves.

    Args:
        net: The net.

    Returns:
        True for a convolution of 1 to 3 dimensions, or a transposed one of 2.
    """
    return any(isinstance(layer, CONVOLUTIONS) for layer in net.modules())


def fast_precision(net: nn.Module, device: torch.device) -> torch.dtype:
    """Choose the precision of a net's convolutions and products in training.

    Args:
        net: The net.
        device: The device that it is trained on.

    Returns:
        bfloat16 for a net with convolutions on a processor with units for it, AVX-512's or AMX, if
        this PyTorch can tell; float32 elsewhere and on a GPU.
    """
    if device != CPU or not has_convolutions(net):
        return torch.float32
    units: Mapping[str, object] = getattr(torch.cpu, "get_capabilities", dict)()
    has_units = units.get("avx512_bf16") or units.get("amx_bf16")
    return torch.bfloat16 if has_units else torch.float32
