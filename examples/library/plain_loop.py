"""ClusterCEL in a plain PyTorch loop."""

import torch
from digits import build_net, read_digits
from torch.nn.functional import cross_entropy

import fedcel

(x, y), (test_x, test_y) = read_digits()
encoder, head = build_net()
cel, epochs = fedcel.ClusterCEL(classes=10, noise=0.3), 100
adam = torch.optim.AdamW([*encoder.parameters(), *head.parameters()], 0.003, weight_decay=0.1)
rate = torch.optim.lr_scheduler.CosineAnnealingLR(adam, epochs, eta_min=1e-4)
for epoch in range(epochs):
    cel.refresh(encoder(x), y)
    weight = 3.0 * fedcel.ramp_weight(epoch, epochs)
    for rows in torch.randperm(len(y)).split(64):
        z = encoder(x[rows])
        answers = head(z + 0.3 * torch.randn_like(z))
        loss = cross_entropy(answers, y[rows]) + weight * cel(z, y[rows])
        adam.zero_grad()
        loss.backward()
        adam.step()
    rate.step()
z = encoder.eval()(test_x)
logits = head(z + 0.3 * torch.randn_like(z))
leak = fedcel.measure_leakage(encoder, test_x, test_y, noise=0.3, logits=logits)
print(leak)
