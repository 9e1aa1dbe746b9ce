"""Attacks that make an encoder of their own."""

import pytest
import torch

from fedcel.attacks.attack import OtherClasses
from fedcel.attacks.score_card import mse
from fedcel.attacks.unknown_encoder import Shadow, moment_distance, residual_sd
from fedcel.leakage import ARCHITECTURE, HEAD, SmashedData
from fedcel.nets.cut import Cut
from fedcel.nets.split_net import SplitNet
from fedcel.testing.attacks import (
    check_attack,
    load_digit_targets,
)
from fedcel.testing.attacks import make_stream as stream
from tests.fedcel.attacks.undefended import class_means, train_undefended


def test_the_shadow_holds_the_contract() -> None:
    """On the messages of an undefended net."""
    check_attack(Shadow, observation=SmashedData(train_undefended()), share=0.75)


class Silent(SmashedData):
    """Messages of a device that answers nobody."""

    grants = frozenset({HEAD, ARCHITECTURE})

    def sample(self, images: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        raise AssertionError("the attack asked the device")


def test_asks_nobody_and_sees_more_than_the_label() -> None:
    """No query at all; still below what the label alone tells."""
    known, targets = load_digit_targets()
    seen = SmashedData(train_undefended())
    observed = seen.sample(targets.x, stream())
    rebuilt = Shadow().reconstruct(Silent(seen.net), known, observed, 0.5, stream(1))
    assert mse(rebuilt, targets.x) < 0.9 * mse(class_means(targets.y, known), targets.x)


class Unread(SmashedData):
    """Messages whose head nobody may ask."""

    def answer(self, observed: torch.Tensor) -> torch.Tensor:
        raise AssertionError("the attack compared labels that are not the net's")


def test_labels_of_other_classes_are_not_the_heads() -> None:
    """The moments alone: the head is not asked, and the labels change nothing."""
    known, targets = load_digit_targets()
    seen = Unread(train_undefended())
    observed = seen.sample(targets.x, stream())
    one, two = (
        Shadow().reconstruct(seen, OtherClasses(known.x, y), observed, 0.02, stream(1))
        for y in (known.y, known.y.flip(0))
    )
    assert torch.equal(one, two)


def test_moments_by_hand() -> None:
    """Equal clouds are 0 apart; moved by 2, 4; a narrower one is no fault, a wider one is."""
    cloud = torch.tensor([[0.0, 0.0], [2.0, 2.0]])
    assert moment_distance(cloud, cloud).item() == 0
    assert moment_distance(cloud + 2, cloud).item() == pytest.approx(4)
    assert moment_distance(0.5 * (cloud - 1), cloud - 1).item() == pytest.approx(0)
    assert moment_distance(3 * (cloud - 1), cloud - 1).item() == pytest.approx(4)


def test_residue_is_what_the_defence_does_not_explain() -> None:
    """Noise of sd .5 received, .4 of the defence: .3 is missing; nothing where .5 is its own."""
    x = torch.rand(20_000, 1, 8, 8, generator=stream(1))
    defences = [SmashedData(train_undefended(sd)) for sd in (0.4, 0.5)]
    with torch.no_grad():
        z = x.flatten(1)[:, :4]
        observed = z + 0.5 * torch.randn(len(x), 4, generator=stream(2))
        missing = [residual_sd(noise.disturb(z, stream(3)), observed) for noise in defences]
    assert missing[0].tolist() == pytest.approx([0.3] * 4, rel=0.05)
    assert missing[1].max() < 0.1


class Quiet(SmashedData):
    """Messages of a defence that the attacker takes for none."""

    def disturb(self, codes: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        return codes


def test_dropout_is_trained_through() -> None:
    """Half of the values dropped: an imitation that drops none has messages twice too large."""
    known, targets = load_digit_targets()
    net = SplitNet(train_undefended().encoder, train_undefended().head, Cut(0.1, 0.5), 32)
    seen = SmashedData(net)
    observed = seen.sample(targets.x, stream())
    through, past = (
        mse(Shadow().reconstruct(each, known, observed, 0.5, stream(1)), targets.x)
        for each in (seen, Quiet(net))
    )
    assert through < 0.95 * past
