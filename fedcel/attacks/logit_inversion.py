"""Logit inversion: learn images from the answers of a service that counts its queries."""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from fedcel.attacks.attacker import Attacker, BaseAttack, Reconstructions
from fedcel.attacks.inversion_training import DEFAULT_EFFORT, Effort, train_and_invert
from fedcel.leakage import Observation


def centre_logits(answers: Float[Tensor, "N K"]) -> Float[Tensor, "N K"]:
    """Return logits with mean 0: a number added to all of them means nothing."""
    return answers - answers.mean(1, keepdim=True)


@dataclass(frozen=True)
class CentredLogits:
    """An observation's answers, centred."""

    answers: Observation

    @property
    def name(self) -> str:
        """The kind of the answers."""
        return self.answers.name

    @property
    def grants(self) -> frozenset[str]:
        """What the answers grant."""
        return self.answers.grants

    def sample(
        self, images: Float[Tensor, "B C H W"], generator: torch.Generator
    ) -> Float[Tensor, "B K"]:
        """Return one fresh answer per image, centred."""
        return centre_logits(self.answers.sample(images, generator))


@dataclass(frozen=True)
class LogitInversion(BaseAttack):
    """Train a network from a service's answers back to images.

    Each of the attacker's images is asked about `effort.repeats` times, because the service adds
    noise of its own.

    Args:
        name, needs, observes: See `Attack`.
        effort: How the network is trained.

    References:
        Yang et al., CCS 2019 (inversion of prediction vectors).
    """

    name: str = "logit-inversion"
    needs: frozenset[str] = frozenset()
    observes: str = "private-logits"
    effort: Effort = DEFAULT_EFFORT

    def invert(self, attacker: Attacker, observed: Float[Tensor, "T F"]) -> Reconstructions:
        """Return one image per answer."""
        centred = replace(attacker, observation=CentredLogits(attacker.observation))
        return train_and_invert(centred, centre_logits(observed), self.effort)
