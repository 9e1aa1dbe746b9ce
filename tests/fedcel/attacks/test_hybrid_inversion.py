"""Regression and search in one."""

import pytest
import torch

from fedcel.attacks.attack import Attack
from fedcel.attacks.averaging import AveragedObservation, RepeatedObservation
from fedcel.attacks.decoder import Decoder
from fedcel.attacks.kernel_ridge import KernelRidge
from fedcel.attacks.pixel_descent import HybridInversion, add_proximal_term
from fedcel.attacks.score_card import class_means, mean_image, mse
from fedcel.leakage import SmashedData
from fedcel.nets.cut import Cut
from fedcel.nets.split_net import SplitNet
from fedcel.testing.attacks import AttackContract, load_digit_targets
from tests.fedcel.attacks.undefended import train_undefended


def stream(seed: int = 0) -> torch.Generator:
    """Return a generator."""
    return torch.Generator().manual_seed(seed)


class TestHybrid(AttackContract):
    """The built-in one."""

    def build(self) -> Attack:
        """Return it."""
        return HybridInversion()


@pytest.mark.parametrize("sigma", [0.1, 1.0])
def test_better_than_what_it_starts_from(sigma: float) -> None:
    """On an undefended net: below both decoders, little noise or much; half the class mean's."""
    known, targets = load_digit_targets()
    seen = SmashedData(train_undefended(sigma, 2))
    observed = seen.sample(targets.x, stream())
    errors = [
        mse(attack.reconstruct(seen, known, observed, 0.5, stream(1)), targets.x)
        for attack in (HybridInversion(), Decoder(), KernelRidge())
    ]
    assert errors[0] < min(errors[1:])
    assert errors[0] < (0.4 if sigma < 1 else 0.6) * mse(class_means(targets.y, known), targets.x)


def test_under_much_noise_it_stays_where_it_starts() -> None:
    """Sigma 10 on a net made for .1: the weakest tie of all would leave the mean image behind."""
    known, targets = load_digit_targets()
    net = train_undefended()
    seen = SmashedData(SplitNet(net.encoder, net.head, Cut(10.0), net.features))
    observed = seen.sample(targets.x, stream())
    rebuilt = HybridInversion(ties=(0.01,)).reconstruct(seen, known, observed, 0.2, stream(1))
    assert mse(rebuilt, targets.x) < 1.1 * mse(mean_image(targets.y, known), targets.x)


@pytest.mark.long
def test_under_dropout_the_law_beats_the_gap_to_the_mean() -> None:
    """Four values in ten dropped, sigma .1: an error of .9 of that without the law, or less."""
    known, targets = load_digit_targets()
    net = train_undefended()
    seen = SmashedData(SplitNet(net.encoder, net.head, Cut(0.1, 0.4), net.features))
    observed = seen.sample(targets.x, stream())
    law, gap = (
        mse(HybridInversion().reconstruct(surface, known, observed, 0.5, stream(1)), targets.x)
        for surface in (
            seen,
            AveragedObservation(RepeatedObservation(seen, 1)),
        )  # a mean of answers offers no law
    )
    assert law < 0.9 * gap


def test_tie_by_hand() -> None:
    """The loss is 1 + mu times the mean squared distance."""
    centre, images = torch.zeros(2, 1, 2, 2), torch.full((2, 1, 2, 2), 0.5)
    loss = add_proximal_term(lambda x: torch.ones(len(x)), centre, torch.tensor([1.0, 4.0]))
    assert loss(images).tolist() == [1.25, 2.0]
