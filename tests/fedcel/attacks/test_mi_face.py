"""MI-FACE."""

from dataclasses import dataclass

import pytest
import torch

from fedcel.attacks.attack import Attack
from fedcel.attacks.pixel_descent import MIFace
from fedcel.attacks.score_card import label_accuracy
from fedcel.leakage import LOGITS, Observation
from fedcel.nets.split_net import SplitNet
from fedcel.testing.attacks import (
    AttackContract,
    LinearObservation,
    load_digit_targets,
)
from tests.fedcel.attacks.undefended import train_undefended


def stream(seed: int = 0) -> torch.Generator:
    """Return a generator."""
    return torch.Generator().manual_seed(seed)


@dataclass(frozen=True)
class Answers:
    """Logits of a net without any noise."""

    net: SplitNet
    name: str = "private-logits"
    grants: frozenset[str] = frozenset({LOGITS})

    def logits(self, images: torch.Tensor) -> torch.Tensor:
        """Return them, with a gradient."""
        return self.net.answer(self.net.encode(images))

    def sample(self, images: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """Return them."""
        return self.logits(images).detach()


class TestMIFace(AttackContract):
    """The built-in one; a class's picture is little nearer to a target than the mean image."""

    budget = 0.1
    share = 0.95

    def build(self) -> Attack:
        """Return it."""
        return MIFace()

    def observation(self) -> Observation:
        """Return it."""
        return Answers(train_undefended())


def test_pictures_show_their_class() -> None:
    """An independent classifier reads the answered class off most pictures; one per class."""
    known, targets = load_digit_targets()
    seen = Answers(train_undefended())
    observed = seen.sample(targets.x, stream())
    rebuilt = MIFace().reconstruct(seen, known, observed, 0.1, stream())
    answered = observed.argmax(1)
    assert label_accuracy(rebuilt, answered, known) > 0.6
    assert seen.logits(rebuilt).softmax(1).gather(1, answered[:, None]).min() > 0.98
    assert len(torch.unique(rebuilt.flatten(1), dim=0)) == len(torch.unique(answered))


def test_needs_a_gradient() -> None:
    """Refused by name without it."""
    with pytest.raises(ValueError, match="must grant 'logits'"):
        MIFace().reconstruct(
            LinearObservation("private-logits"),
            load_digit_targets()[0],
            torch.zeros(1, 32),
            1.0,
            stream(),
        )
