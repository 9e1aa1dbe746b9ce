"""Logit inversion: learn images from the answers of a service that counts its queries."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from fedcel.attacks.inversion_training import DEFAULT_EFFORT, Effort, train_and_invert
from fedcel.attacks.protocol import Progress
from fedcel.data import Images
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
class LogitInversion:
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

    def reconstruct(
        self,
        observation: Observation,
        auxiliary: Images,
        observed: Float[Tensor, "T F"],
        budget: float,
        generator: torch.Generator,
        progress: Progress | None = None,
    ) -> Float[Tensor, "T C H W"]:
        """Reconstruct one image per answer; see `Attack.reconstruct`."""
        return train_and_invert(
            CentredLogits(observation),
            auxiliary.x,
            centre_logits(observed),
            self.effort.scaled(budget),
            generator=generator,
            progress=progress,
        )
