"""Regularised maximum likelihood."""

import pytest
import torch

from fedcel.attacks.attack import Attack
from fedcel.attacks.averaging import AveragedObservation, RepeatedObservation
from fedcel.attacks.pixel_descent import RMLE, DescentSteps
from fedcel.attacks.score_card import class_means, mse
from fedcel.leakage import FREE_QUERIES, SmashedData
from fedcel.nets.cut import Cut
from fedcel.nets.split_net import SplitNet
from fedcel.testing.attacks import AttackContract, load_digit_targets
from tests.fedcel.attacks.undefended import train_undefended


def stream(seed: int = 0) -> torch.Generator:
    """Return a generator."""
    return torch.Generator().manual_seed(seed)


class TestRMLE(AttackContract):
    """The built-in search; a prior of smooth images alone gets no nearer."""

    budget, share = 0.1, 0.4

    def build(self) -> Attack:
        """Return it."""
        return RMLE()


class Still(AttackContract):
    """A search that never moves, as one with a wrong learning rate would be."""

    def build(self) -> Attack:
        """Return it."""
        return RMLE(steps=DescentSteps(100, 0.0))


def test_contract_catches_a_search_that_stands_still() -> None:
    """The mean image, which it starts from, is no attack."""
    with pytest.raises(AssertionError):
        Still().test_far_better_than_the_mean_image()


def test_without_noise_far_below_the_class_mean() -> None:
    """A trained layer without noise: a third of what the label tells, or less."""
    known, targets = load_digit_targets()
    seen = SmashedData(train_undefended(0.0, 1))
    observed = seen.sample(targets.x, stream())
    rebuilt = RMLE().reconstruct(seen, known, observed, 0.2, stream(1))
    assert mse(rebuilt, targets.x) < 0.4 * mse(class_means(targets.y, known), targets.x)


def test_as_many_features_as_pixels_is_exact() -> None:
    """The identity as encoder, no noise: every pixel is found."""
    net = SplitNet(torch.nn.Flatten(), torch.nn.Identity(), Cut(0.0), 64)
    known, targets = load_digit_targets()
    rebuilt = RMLE().reconstruct(SmashedData(net), known, targets.x.flatten(1), 0.2, stream())
    assert mse(rebuilt, targets.x) < 1e-5


def test_noise_chooses_a_short_search() -> None:
    """Noise as large as the signal: fitting it is worse than stopping early, and that is seen."""
    known, targets = load_digit_targets()
    seen = SmashedData(train_undefended(3.0, 1))
    observed = seen.sample(targets.x, stream())
    greedy = RMLE(weights=(0.0,), shares=(1.0,))
    errors = [
        mse(attack.reconstruct(seen, known, observed, 0.2, stream(1)), targets.x)
        for attack in (RMLE(), greedy)
    ]
    assert errors[0] < 0.7 * errors[1]


@pytest.mark.parametrize("sigma", [0.0, 0.1])
def test_under_dropout_the_law_beats_the_gap_to_the_mean(sigma: float) -> None:
    """Four values in ten dropped: what came through is fitted, not (1 - p) z to all of it."""
    known, targets = load_digit_targets()
    net = train_undefended(sigma)
    seen = SmashedData(SplitNet(net.encoder, net.head, Cut(sigma, 0.4), net.features))
    observed = seen.sample(targets.x, stream())
    law, gap = (
        mse(RMLE().reconstruct(surface, known, observed, 0.1, stream(1)), targets.x)
        for surface in (
            seen,
            AveragedObservation(RepeatedObservation(seen, 1)),
        )  # a mean of answers offers no law
    )
    assert law < 0.9 * gap


def test_needs_the_mean() -> None:
    """An observation without a gradient is refused by name."""

    class Opaque:
        name, grants = "opaque", frozenset({FREE_QUERIES})

        def sample(self, images: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
            return images.flatten(1)

    with pytest.raises(ValueError, match="'opaque' must grant 'mean', grants free-queries"):
        RMLE().reconstruct(Opaque(), load_digit_targets()[0], torch.zeros(1, 64), 1.0, stream())
