"""Decoder trained against a critic: images that also look like images."""

from dataclasses import dataclass
from math import prod

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fedcel.attacks.attack import Attacker, BaseAttack, Reconstructions
from fedcel.attacks.decoder import (
    HELD_OUT_DRAWS,
    apply_network,
    build_decoder_network,
    is_flat,
    keep_best_epoch,
    observe_own_images,
)
from fedcel.nets import fastest_device, initialise_parameters
from fedcel.torch_state import use_full_precision

ADAM_BETAS = (0.5, 0.999)
MAX_BATCH = 64
LEAKY_SLOPE = 0.2
CRITIC_UNITS = 128  # of each hidden layer of the plain critic
CRITIC_CHANNELS = (16, 32, 64, 64)  # of the critic of larger images


@dataclass(frozen=True)
class GANDecoder(BaseAttack):
    """Train a decoder network against a critic that tells its images from real ones.

    The generator's loss is `weight` times the squared error to the known image, less the critic's
    opinion. The best epoch is kept.

    Args:
        name, needs, observes: See `Attack`.
        epochs: Passes over the attacker's images at budget 1.
        critic_steps: Steps of the critic for each step of the decoder.
        critic_rate: Step size of the critic.
        rate: Step size of the decoder.
        penalty: Weight of the critic's gradient penalty.
        weight: Weight of the mean squared error beside the critic's opinion.
        repeats: Answers asked for each image where asking is not free.

    References:
        Gulrajani et al., NIPS 2017, algorithm 1.
    """

    name: str = "gan-decoder"
    needs: frozenset[str] = frozenset()
    observes: str = "smashed-data"
    epochs: int = 100
    critic_steps: int = 10
    critic_rate: float = 5e-3
    rate: float = 5e-4
    penalty: float = 10.0
    weight: float = 100.0
    repeats: int = 16

    def invert(self, attacker: Attacker, observed: Float[Tensor, "T F"]) -> Reconstructions:
        """Return one image per message."""
        generator, shape = attacker.generator, tuple(attacker.auxiliary.x.shape[1:])
        own_images = observe_own_images(attacker, self.repeats, HELD_OUT_DRAWS)
        net = build_decoder_network(own_images.observe(generator), shape, generator)
        device = fastest_device(net)
        net = net.to(device)
        critic = build_critic(shape, generator).to(device)
        images = own_images.training.to(device)
        net_adam = torch.optim.Adam(net.parameters(), self.rate, ADAM_BETAS)
        critic_adam = torch.optim.Adam(critic.parameters(), self.critic_rate, ADAM_BETAS)
        size = min(MAX_BATCH, len(images))

        def train_critic(inputs: Float[Tensor, "A F"]) -> None:
            picked = torch.randint(len(images), (size,), generator=generator)
            with torch.no_grad():
                fake = net(inputs[picked])
            critic_adam.zero_grad()
            gap = critic(fake).mean() - critic(images[picked]).mean()
            slope = gradient_penalty(critic, images[picked], fake, generator)
            (gap + self.penalty * slope).backward()
            critic_adam.step()

        @use_full_precision()
        def train_epoch() -> None:
            inputs = own_images.observe(generator).to(device)
            for batch in torch.split(torch.randperm(len(images), generator=generator), size):
                for _ in range(self.critic_steps):
                    train_critic(inputs)
                net_adam.zero_grad()
                fake = net(inputs[batch])
                error = (fake - images[batch]).square().mean()
                (self.weight * error - critic(fake).mean()).backward()
                net_adam.step()

        epochs = attacker.scale(self.epochs)
        best = keep_best_epoch(attacker, net, own_images, train_epoch, epochs=epochs)
        return apply_network(best, observed)


def gradient_penalty(
    critic: nn.Module,
    real: Float[Tensor, "B C H W"],
    fake: Float[Tensor, "B C H W"],
    generator: torch.Generator,
) -> Float[Tensor, ""]:
    """Return the mean of (|gradient| - 1)^2 between real and made images, with a gradient."""
    share = torch.rand(len(real), 1, 1, 1, generator=generator).to(real.device)
    between = (share * real + (1 - share) * fake).requires_grad_()
    (slope,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
    return (slope.square().flatten(1).sum(1).sqrt() - 1).square().mean()


def build_critic(shape: tuple[int, ...], generator: torch.Generator) -> nn.Module:
    """Return an untrained critic: two hidden layers for small images, else 4 strided convolutions.

    Without normalisation over the batch, which the penalty forbids (Gulrajani et al., section 4).
    """
    channels, height, width = shape
    layers: list[nn.Module] = []
    if is_flat(shape):
        layers += [nn.Flatten(), nn.Linear(prod(shape), CRITIC_UNITS), nn.LeakyReLU(LEAKY_SLOPE)]
        layers += [nn.Linear(CRITIC_UNITS, CRITIC_UNITS), nn.LeakyReLU(LEAKY_SLOPE)]
        layers += [nn.Linear(CRITIC_UNITS, 1)]
    else:
        for out_channels in CRITIC_CHANNELS:  # each convolution halves the sides
            convolution = nn.Conv2d(channels, out_channels, 3, stride=2, padding=1)
            layers += [convolution, nn.LeakyReLU(LEAKY_SLOPE)]
            channels, height, width = out_channels, -(-height // 2), -(-width // 2)
        layers += [nn.Flatten(), nn.Linear(channels * height * width, 1)]
    net = nn.Sequential(*layers)
    initialise_parameters(net, generator)
    return net
