"""ClusterCEL in a LightningModule; needs `pip install lightning`."""

import torch
from digits import build_net
from lightning import LightningModule
from torch import Tensor
from torch.nn.functional import cross_entropy

import fedcel


class Defended(LightningModule):
    """Encoder, noise and head, trained with a loss that hides what is not the label."""

    def __init__(self, x: Tensor, y: Tensor, epochs: int) -> None:
        super().__init__()
        self.encoder, self.head = build_net()
        self.cel = fedcel.ClusterCEL(classes=10, noise=0.3)
        self.training_images, self.epochs = (x, y), epochs

    def on_train_epoch_start(self) -> None:
        """Find the centres of all training images anew."""
        x, y = self.training_images
        self.cel.refresh(self.encoder(x.to(self.device)), y)

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        """Return the cross-entropy of noisy messages and the loss that hides."""
        z = self.encoder(batch[0])
        answers = self.head(z + 0.3 * torch.randn_like(z))
        weight = 3.0 * fedcel.ramp_weight(self.current_epoch, self.epochs)
        return cross_entropy(answers, batch[1]) + weight * self.cel(z, batch[1])

    def configure_optimizers(self) -> tuple[list[object], list[object]]:
        """Return Adam, and a rate that falls as a cosine."""
        adam = torch.optim.AdamW(self.parameters(), 0.003, weight_decay=0.1)
        return [adam], [torch.optim.lr_scheduler.CosineAnnealingLR(adam, self.epochs)]
