"""Data and net of the examples: 8x8 digits, an encoder of 64 features, a linear head."""

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn


def read_digits() -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Return 1 397 images to train with and 400 to test, each with labels."""
    x, y = (torch.as_tensor(part) for part in load_digits(return_X_y=True))
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    x, y = x[order].float() / 16, y[order]
    return (x[:-400], y[:-400]), (x[-400:], y[-400:])


def build_net() -> tuple[nn.Module, nn.Module]:
    """Return encoder and head, the same ones every time, and noise from there on."""
    torch.manual_seed(0)
    hidden = nn.Linear(64, 256), nn.ReLU(), nn.Dropout(0.3)
    return nn.Sequential(*hidden, nn.Linear(256, 64), nn.Sigmoid()), nn.Linear(64, 10)
