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
    convolves = any(isinstance(layer, CONVOLUTIONS) for layer in net.modules())
    return torch.device("cuda") if convolves and torch.cuda.is_available() else CPU
