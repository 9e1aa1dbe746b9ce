"""Decoder trained against a critic: images that also look like images.

Source: Gulrajani et al., NIPS 2017, algorithm 1, with the squared error to the known image added
to the generator's loss.
"""

from copy import deepcopy
from dataclasses import dataclass
from math import prod

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fedcel.attacks.decoder_networks import build_decoder_network, is_flat
from fedcel.attacks.inversion_training import Draw, apply_network, make_observer, split_held_out
from fedcel.attacks.protocol import Progress, report_progress
from fedcel.data import Images
from fedcel.leakage import Observation
from fedcel.nets import fastest_device, initialise_parameters, use_full_precision

BETAS = (0.5, 0.999)
HELD_DRAWS = 8  # observations of each held image, so that the choice of epoch is not one of noise


@dataclass(frozen=True)
class GANDecoder:
    """The decoder's network as generator, a critic of its size, the best epoch is kept."""

    name: str = "gan-decoder"
    needs: frozenset[str] = frozenset()
    observes: str = "smashed-data"
    epochs: int = 100
    critic_steps: int = 10
    critic_rate: float = 5e-3
    rate: float = 5e-4
    penalty: float = 10.0
    weight: float = 100.0
    """Of the mean squared error beside the critic's opinion."""
    repeats: int = 16
    """Answers asked for each image, where asking is not free."""

    def reconstruct(
        self,
        observation: Observation,
        auxiliary: Images,
        observed: Float[Tensor, "T F"],
        budget: float,
        generator: torch.Generator,
        progress: Progress | None = None,
    ) -> Float[Tensor, "T C H W"]:
        """Return one image in [0, 1] per message; DataError on fewer than two own images."""
        images, held = split_held_out(auxiliary.x, generator)
        draw = make_observer(observation, images, self.repeats, torch.clone, generator)
        check = make_observer(observation, held, self.repeats, torch.clone, generator)
        checks = torch.cat([check(generator) for _ in range(HELD_DRAWS)])
        truth = held.repeat(HELD_DRAWS, 1, 1, 1)
        shape = tuple(images.shape[1:])
        net = build_decoder_network(draw(generator), shape, generator)
        place = fastest_device(net)
        net, critic = net.to(place), build_critic(shape, generator).to(place)
        images = images.to(place)
        optimisers = (
            torch.optim.Adam(net.parameters(), self.rate, BETAS),
            torch.optim.Adam(critic.parameters(), self.critic_rate, BETAS),
        )
        best, lowest = net, torch.inf
        epochs = max(1, round(self.epochs * budget))
        for epoch in range(1, epochs + 1):
            self.epoch(net, critic, optimisers, draw, images, generator)
            error = float((apply_network(net, checks) - truth).square().mean())
            if error < lowest:
                best, lowest = deepcopy(net), error
            report_progress(progress, "epoch", epoch, epochs, f"MSE {error:.4f} on held images")
        return apply_network(best, observed)

    @use_full_precision()
    def epoch(
        self,
        net: nn.Module,
        critic: nn.Module,
        optimisers: tuple[torch.optim.Optimizer, torch.optim.Optimizer],
        draw: Draw,
        images: Float[Tensor, "A C H W"],
        generator: torch.Generator,
    ) -> None:
        """Train both in place, on every image once, `critic_steps` of the critic for one."""
        inputs = draw(generator).to(images.device)
        size = min(64, len(images))
        for part in torch.split(torch.randperm(len(images), generator=generator), size):
            for _ in range(self.critic_steps):
                pick = torch.randint(len(images), (size,), generator=generator)
                with torch.no_grad():
                    fake = net(inputs[pick])
                optimisers[1].zero_grad()
                gap = critic(fake).mean() - critic(images[pick]).mean()
                slope = gradient_penalty(critic, images[pick], fake, generator)
                (gap + self.penalty * slope).backward()
                optimisers[1].step()
            optimisers[0].zero_grad()
            made = net(inputs[part])
            error = (made - images[part]).square().mean()
            (self.weight * error - critic(made).mean()).backward()
            optimisers[0].step()


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

    Without normalisation over the batch, which the penalty forbids (section 4 there).
    """
    net = nn.Sequential(
        *(build_flat_critic(shape) if is_flat(shape) else build_strided_critic(shape))
    )
    initialise_parameters(net, generator)
    return net


def build_flat_critic(shape: tuple[int, ...]) -> list[nn.Module]:
    """Return the layers of the plain critic."""
    sizes, slope = (prod(shape), 128, 128), 0.2
    return [
        nn.Flatten(),
        nn.Linear(sizes[0], sizes[1]),
        nn.LeakyReLU(slope),
        nn.Linear(sizes[1], sizes[2]),
        nn.LeakyReLU(slope),
        nn.Linear(sizes[2], 1),
    ]


def build_strided_critic(shape: tuple[int, ...]) -> list[nn.Module]:
    """Return the layers of the critic of larger images, each convolution halving the sides."""
    layers: list[nn.Module] = []
    channels, (height, width) = shape[0], shape[1:]
    for wide in (16, 32, 64, 64):
        layers += [nn.Conv2d(channels, wide, 3, stride=2, padding=1), nn.LeakyReLU(0.2)]
        channels, height, width = wide, -(-height // 2), -(-width // 2)
    return [*layers, nn.Flatten(), nn.Linear(channels * height * width, 1)]
