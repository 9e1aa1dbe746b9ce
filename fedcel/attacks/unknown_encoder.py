"""Attacks on an encoder whose parameters the attacker does not know: it makes its own."""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedcel.attacks.attack import Attacker, BaseAttack, OtherClasses, Reconstructions
from fedcel.attacks.decoder import Decoder
from fedcel.leakage import (
    ARCHITECTURE,
    FREE_QUERIES,
    HEAD,
    ObservationArchitecture,
    ObservationHead,
)

BATCH_SIZE, RATE = 64, 1e-3  # of the training of the attacker's encoder


class Shadow(BaseAttack):
    """Train an encoder that the server's head understands, then a decoder that inverts it.

    The attacker, a curious server, has the head, own images and the messages that it was sent; it
    knows the defence at the cut and trains through it, and never asks a device anything. The
    encoder's loss is the cross-entropy of the frozen head, and the distance of its messages'
    moments from those received; only the latter where its own images are of other classes.

    References:
        Xu et al., CVPR 2024 (FORA: a pseudo-client whose messages look like those received).
        He et al., ACSAC 2019, section 6 (the shadow model).
    """

    name = "shadow"
    needs = frozenset({HEAD, ARCHITECTURE})
    epochs = 200
    """Passes of the encoder over the images at budget 1."""

    def invert(self, attacker: Attacker, observed: Float[Tensor, "T F"]) -> Reconstructions:
        """Return one image per message."""
        observation, generator = attacker.observation, attacker.generator
        x, y = attacker.auxiliary
        assert isinstance(observation, ObservationHead)
        assert isinstance(observation, ObservationArchitecture)
        encoder = observation.fresh_encoder(generator)
        epochs, parameters = attacker.scale(self.epochs), list(encoder.parameters())
        adam = torch.optim.Adam(parameters, RATE)
        for epoch in attacker.clock.steps(epochs, share=0.5):
            order = torch.randperm(len(y), generator=generator)
            for batch in attacker.clock.parts(torch.split(order, BATCH_SIZE)):
                sent = observation.disturb(encoder(x[batch]), generator)
                loss = moment_distance(sent, observed)
                if not isinstance(attacker.auxiliary, OtherClasses):
                    loss = loss + cross_entropy(observation.answer(sent), y[batch])
                adam.zero_grad()
                torch.autograd.backward(loss, inputs=parameters)
                adam.step()
            attacker.report("shadow epoch", epoch, epochs, f"loss {float(loss.detach()):.3f}")
        with torch.no_grad():
            sent = observation.disturb(encoder(x), generator)
        imitation = Imitation(encoder, observation, residual_sd(sent, observed))
        return Decoder().invert(replace(attacker, observation=imitation), observed)


@dataclass(frozen=True)
class Imitation:
    """Messages of an encoder of the attacker's own, as noisy as those received.

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


def residual_sd(sent: Float[Tensor, "A F"], observed: Float[Tensor, "T F"]) -> Float[Tensor, " F"]:
    """Return the sd of what has to be added for messages to vary as much as those received."""
    return (observed.var(0, correction=0) - sent.var(0, correction=0)).relu().sqrt()
