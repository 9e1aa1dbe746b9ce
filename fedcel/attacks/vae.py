"""A small variational autoencoder: what the attacker knows about images as such."""

from math import prod

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from fedcel.attacks.attacker import Attacker
from fedcel.attacks.inversion_training import minimise_loss
from fedcel.nets import initialise_parameters

HIDDEN_UNITS = 256
PIXEL_VARIANCE = 0.02  # around the decoder's image, so that the two terms weigh about the same


def fit_vae(attacker: Attacker, latents: int, epochs: int) -> nn.Module:
    """Return a decoder (B, latents) of the attacker's images whose latents are about N(0, I).

    Kingma and Welling, ICLR 2014, equation 10, with a Gaussian decoder.
    """
    images, generator = attacker.auxiliary.x, attacker.generator
    shape = tuple(images.shape[1:])
    encoder = nn.Sequential(
        nn.Flatten(),
        nn.Linear(prod(shape), HIDDEN_UNITS),
        nn.ReLU(),
        nn.Linear(HIDDEN_UNITS, 2 * latents),
    )
    decoder = nn.Sequential(
        nn.Linear(latents, HIDDEN_UNITS),
        nn.ReLU(),
        nn.Linear(HIDDEN_UNITS, prod(shape)),
        nn.Unflatten(1, shape),
        nn.Sigmoid(),
    )
    both = nn.ModuleList([encoder, decoder])
    initialise_parameters(both, generator)

    def batch_loss(batch: Int[Tensor, " b"]) -> Float[Tensor, ""]:
        mean, log_variance = encoder(images[batch]).chunk(2, 1)
        noise = torch.randn(mean.shape, generator=generator)
        decoded = decoder(mean + noise * (log_variance / 2).exp())
        error = (decoded - images[batch]).square().flatten(1).sum(1) / (2 * PIXEL_VARIANCE)
        divergence = (mean.square() + log_variance.exp() - 1 - log_variance).sum(1) / 2
        loss: Tensor = (error + divergence).mean()
        return loss

    def tell_epoch(epoch: int, loss: float) -> None:
        attacker.report("prior epoch", epoch, epochs, f"loss {loss:.2f} nats")

    minimise_loss(
        both.parameters(),
        batch_loss,
        len(images),
        epochs,
        generator=generator,
        tell_epoch=tell_epoch,
    )
    return decoder
