"""Query-free shadow: train an encoder of one's own to please the server's head, then invert it.

The attacker, a curious server, has the head, images of his own and the messages he was sent; he
knows the defence at the cut and trains through it, and never asks a device anything. After the
pseudo-client of Xu et al., CVPR 2024 (FORA), whose messages are made to look like those received,
and the shadow model of He et al., ACSAC 2019, section 6.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedcel.attacks.decoder import pass_through
from fedcel.attacks.inversion_training import DEFAULT, Effort, train_and_invert
from fedcel.attacks.protocol import OtherClasses, Progress, report_progress
from fedcel.data import Images
from fedcel.leakage import (
    ARCHITECTURE,
    FREE_QUERIES,
    HEAD,
    Observation,
    ObservationArchitecture,
    ObservationHead,
    make_refusal,
)
from fedcel.nets import initialise_parameters

HIDDEN = 128  # units of the encoder of an attacker who does not know the real one
BATCH = 64


@dataclass(frozen=True)
class Shadow:
    """Cross-entropy of the frozen head, and the moments of what was received; then the decoder.

    Where the attacker's images are of other classes than the net's, the moments alone.
    `clone` says whether the encoder has the layers of the real one, or one hidden layer.
    """

    clone: bool = True
    observes: str = "smashed-data"
    epochs: int = 200
    rate: float = 1e-3
    weight: float = 1.0
    """Of the distance of the moments, beside the cross-entropy in nats."""
    effort: Effort = DEFAULT

    @property
    def name(self) -> str:
        """Return `shadow`, or `shadow-other` where the encoder's layers are not known."""
        return "shadow" if self.clone else "shadow-other"

    @property
    def needs(self) -> frozenset[str]:
        """Return the head, and the encoder's layers for a clone."""
        return frozenset({HEAD, ARCHITECTURE} if self.clone else {HEAD})

    def reconstruct(
        self,
        observation: Observation,
        auxiliary: Images,
        observed: Float[Tensor, "T F"],
        budget: float,
        generator: torch.Generator,
        progress: Progress | None = None,
    ) -> Float[Tensor, "T C H W"]:
        """Return one image in [0, 1] per message; ValueError where a need is not granted."""
        if not isinstance(observation, ObservationHead):
            raise make_refusal(observation, HEAD)
        if not self.clone:
            encoder = build_plain_encoder(auxiliary.x, observed.shape[1], generator)
        elif isinstance(observation, ObservationArchitecture):
            encoder = observation.fresh_encoder(generator)
        else:
            raise make_refusal(observation, ARCHITECTURE)
        epochs = max(1, round(self.epochs * budget))
        adam = torch.optim.Adam(encoder.parameters(), self.rate)
        for epoch in range(1, epochs + 1):
            order = torch.randperm(len(auxiliary.y), generator=generator)
            for part in torch.split(order, BATCH):
                sent = observation.disturb(encoder(auxiliary.x[part]), generator)
                loss = self.weight * moment_distance(sent, observed)
                if not isinstance(auxiliary, OtherClasses):
                    loss = loss + cross_entropy(observation.answer(sent), auxiliary.y[part])
                adam.zero_grad()
                torch.autograd.backward(loss, inputs=[*encoder.parameters()])
                adam.step()
            report_progress(
                progress, "shadow epoch", epoch, epochs, f"loss {float(loss.detach()):.3f}"
            )
        missing = residual_sd(encoder, observation, auxiliary.x, observed, generator)
        own = Imitation(encoder, observation, missing)
        return train_and_invert(
            own, auxiliary.x, observed, self.effort, pass_through, budget, generator, progress
        )


@dataclass(frozen=True)
class Imitation:
    """Messages of an encoder of the attacker's own, as noisy as those he received.

    Beside the defence's own noise there is more where they vary less than those: it stands for what
    the encoder misses, and a decoder trained without it rebuilds worse.
    """

    encoder: nn.Module
    defence: ObservationHead
    sigma: Float[Tensor, " F"]
    name: str = "imitation"
    grants: frozenset[str] = frozenset({FREE_QUERIES})

    def sample(
        self, images: Float[Tensor, "B C H W"], generator: torch.Generator
    ) -> Float[Tensor, "B F"]:
        """Return fresh messages."""
        with torch.no_grad():
            sent = self.defence.disturb(self.encoder(images), generator)
        return sent + self.sigma * torch.randn(sent.shape, generator=generator)


def moment_distance(
    sent: Float[Tensor, "B F"], observed: Float[Tensor, "T F"]
) -> Float[Tensor, ""]:
    """Return how far means lie apart, and deviations where the own are larger; unit of z squared.

    A smaller deviation is no fault: the decoder's noise makes up for it.
    """
    means = (sent.mean(0) - observed.mean(0)).square().mean()
    excess = (sent.std(0, correction=0) - observed.std(0, correction=0)).relu()
    return means + excess.square().mean()


def residual_sd(
    encoder: nn.Module,
    defence: ObservationHead,
    images: Float[Tensor, "A C H W"],
    observed: Float[Tensor, "T F"],
    generator: torch.Generator,
) -> Float[Tensor, " F"]:
    """Return the sd of what has to be added for messages to vary as much as those received."""
    with torch.no_grad():
        sent = defence.disturb(encoder(images), generator)
    return (observed.var(0, correction=0) - sent.var(0, correction=0)).relu().sqrt()


def build_plain_encoder(
    images: Float[Tensor, "A C H W"], features: int, generator: torch.Generator
) -> nn.Module:
    """Return an encoder with one hidden layer."""
    net = nn.Sequential(
        nn.Flatten(),
        nn.Linear(images[0].numel(), HIDDEN),
        nn.ReLU(),
        nn.Linear(HIDDEN, features),
    )
    initialise_parameters(net, generator)
    return net
