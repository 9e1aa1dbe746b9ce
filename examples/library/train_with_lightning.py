"""Train the LightningModule with Lightning's Trainer and say what its encoder leaks."""

import torch
from digits import read_digits
from lightning import Trainer
from lightning_module import Defended
from torch.utils.data import DataLoader, TensorDataset

import fedcel

(x, y), (test_x, test_y) = read_digits()
module = Defended(x, y, epochs=100)
trainer = Trainer(max_epochs=100, logger=False, enable_checkpointing=False)
trainer.fit(module, DataLoader(TensorDataset(x, y), batch_size=64, shuffle=True))
module = module.cpu().eval()
z = module.encoder(test_x)
logits = module.head(z + 0.3 * torch.randn_like(z))
leak = fedcel.measure_leakage(module.encoder, test_x, test_y, noise=0.3, logits=logits)
print(leak)
