"""Device for training and attacks: a GPU for convolutions where PyTorch finds one.

Random numbers are drawn on the processor in either case, and products stay in float32, never in
TF32: results are the same up to the order of sums. Dense nets, whose operations are small, stay on
the processor.
"""

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
