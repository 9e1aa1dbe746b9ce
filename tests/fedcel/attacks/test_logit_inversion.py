"""Logit inversion."""

import torch

from fedcel.attacks.attack import Attack
from fedcel.attacks.decoder import LogitInversion, centre_logits
from fedcel.attacks.score_card import mean_image, mse
from fedcel.testing.attacks import AttackContract, LinearObservation, load_digit_targets


def stream(seed: int = 0) -> torch.Generator:
    """Return a generator."""
    return torch.Generator().manual_seed(seed)


class TestLogitInversion(AttackContract):
    """The built-in logit inversion."""

    def build(self) -> Attack:
        """Return it."""
        return LogitInversion()


def test_works_on_counted_queries() -> None:
    """Sixteen answers an image, no grants at all: still far better than the mean image."""
    known, targets = load_digit_targets()
    seen = LinearObservation("private-logits", grants=frozenset())
    observed = seen.sample(targets.x, stream())
    images = LogitInversion().reconstruct(seen, known, observed, 0.3, stream(1))
    assert mse(images, targets.x) < 0.5 * mse(mean_image(targets.y, known), targets.x)


def test_what_means_nothing_is_ignored() -> None:
    """A number added to all logits of a query changes no image."""
    known, targets = load_digit_targets()
    seen = LinearObservation("private-logits")
    observed = seen.sample(targets.x, stream())
    first, second = (
        LogitInversion().reconstruct(seen, known, observed + shift, 0.02, stream(1))
        for shift in (0, 3)
    )
    torch.testing.assert_close(first, second, rtol=0, atol=1e-5)


def test_centred_by_hand() -> None:
    """The mean is taken away."""
    assert centre_logits(torch.tensor([[1.0, 2.0, 6.0]])).tolist() == [[-2, -1, 3]]
