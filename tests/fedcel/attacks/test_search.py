"""Black-box search and the autoencoder it searches in."""

import pytest
import torch

from fedcel.attacks.base import Attack
from fedcel.attacks.inversion import apply
from fedcel.attacks.scorecard import mean_image, mse
from fedcel.attacks.search import BlackBoxSearch, answer_variance
from fedcel.attacks.vae import fit_vae
from fedcel.testing.attacks import AttackContract, LinearObservation, digits


def stream(seed: int = 0) -> torch.Generator:
    """Return a generator."""
    return torch.Generator().manual_seed(seed)


class TestSearch(AttackContract):
    """The built-in one."""

    budget = 0.25
    share = 0.6

    def build(self) -> Attack:
        """Return it."""
        return BlackBoxSearch()


class Idle(TestSearch):
    """A search that asks once."""

    def build(self) -> Attack:
        """Return it."""
        return BlackBoxSearch(queries=1)


def test_contract_catches_a_search_that_hardly_asks() -> None:
    """Without queries the middle of the latents is left."""
    with pytest.raises(AssertionError):
        Idle().test_far_better_than_the_mean_image()


def test_never_more_queries_than_paid_for() -> None:
    """The budget's part of `queries` a target, beside two answers to 32 own images."""
    known, targets = digits()
    asked: list[int] = []

    class Counting(LinearObservation):
        def sample(self, images: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
            asked.append(len(images))
            return super().sample(images, generator)

    seen = Counting("private-logits")
    observed = LinearObservation("private-logits").sample(targets.x[:5], stream())
    BlackBoxSearch(epochs=10).reconstruct(seen, known, observed, 0.05, stream())
    assert asked[:2] == [32, 32]
    assert 5 * 100 * 0.8 < sum(asked[2:]) <= 5 * 100


@pytest.mark.parametrize("sigma", [0.1, 2.0])
def test_noise_is_measured(sigma: float) -> None:
    """The variance of one value of a centred answer, 4 standard errors wide: sigma^2 31/32."""
    x = torch.cat([digits()[0].x] * 4)
    found = answer_variance(LinearObservation("private-logits", sigma=sigma), x, stream())
    assert found == pytest.approx(sigma**2 * 31 / 32, rel=4 * (2 / (1000 * 31)) ** 0.5)


def test_latents_make_digits() -> None:
    """A digit drawn from the prior is nearer to some known one than the mean image is."""
    known, targets = digits()
    decoder = fit_vae(known.x, 8, 60, stream())
    made = apply(decoder, torch.randn(50, 8, generator=stream(1)))
    nearest = torch.cdist(made.flatten(1), known.x.flatten(1)).square().amin(1).mean() / 64
    assert nearest < 0.6 * mse(mean_image(targets.y, known), targets.x)
