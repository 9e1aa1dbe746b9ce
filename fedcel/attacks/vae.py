"""A small variational autoencoder: what the attacker knows about images as such.

Source: Kingma and Welling, ICLR 2014, equation 10, with a Gaussian decoder.
"""

from math import prod

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fedcel.attacks.protocol import Progress, report_progress
from fedcel.nets import initialise_parameters

HIDDEN = 256
BATCH = 64
VARIANCE = 0.02  # of a pixel around the decoder's, so that the two terms weigh about the same
RATE = 1e-3


def fit_vae(
    images: Float[Tensor, "A C H W"],
    latents: int,
    epochs: int,
    generator: torch.Generator,
    progress: Progress | None = None,
) -> nn.Module:
    """Return a decoder (B, latents) to images in [0, 1] whose latents are about N(0, I)."""
    shape = tuple(images.shape[1:])
    encoder = nn.Sequential(
        nn.Flatten(), nn.Linear(prod(shape), HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 2 * latents)
    )
    decoder = nn.Sequential(
        nn.Linear(latents, HIDDEN),
        nn.ReLU(),
        nn.Linear(HIDDEN, prod(shape)),
        nn.Unflatten(1, shape),
        nn.Sigmoid(),
    )
    both = nn.ModuleList([encoder, decoder])
    initialise_parameters(both, generator)
    adam = torch.optim.Adam(both.parameters(), RATE)
    for epoch in range(1, epochs + 1):
        for part in torch.split(torch.randperm(len(images), generator=generator), BATCH):
            mean, log_variance = encoder(images[part]).chunk(2, 1)
            noise = torch.randn(mean.shape, generator=generator)
            made = decoder(mean + noise * (log_variance / 2).exp())
            error = (made - images[part]).square().flatten(1).sum(1) / (2 * VARIANCE)
            excess = (mean.square() + log_variance.exp() - 1 - log_variance).sum(1) / 2
            loss = (error + excess).mean()
            adam.zero_grad()
            torch.autograd.backward(loss)
            adam.step()
        report_progress(
            progress, "prior epoch", epoch, epochs, f"loss {float(loss.detach()):.2f} nats"
        )
    return decoder
