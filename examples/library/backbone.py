"""A pretrained ResNet-18 of torchvision, cut after its second stage, as `fedcel audit` takes it."""

import torch
from torch import Tensor, nn
from torchvision.models import resnet18

WEIGHTS = "resnet18.pth"  # a state dict on this machine; nothing is downloaded


class Encoder(nn.Module):
    """Images (B, 1 or 3, H, W) in [0, 1] to 128 features."""

    def __init__(self) -> None:
        super().__init__()
        whole = resnet18()
        whole.load_state_dict(torch.load(WEIGHTS, weights_only=True))
        self.stages = nn.Sequential(*list(whole.children())[:6], nn.AdaptiveAvgPool2d(1))
        self.mean = torch.tensor([0.485, 0.456, 0.406])[:, None, None]
        self.deviation = torch.tensor([0.229, 0.224, 0.225])[:, None, None]

    def forward(self, images: Tensor) -> Tensor:
        """Return the features before any noise."""
        return self.stages((images - self.mean) / self.deviation).flatten(1)
