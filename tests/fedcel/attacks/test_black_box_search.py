"""Black-box search and the autoencoder it searches in."""

from dataclasses import dataclass, field

import pytest
import torch

from fedcel.attacks.attack import Attack, Attacker
from fedcel.attacks.black_box_search import BlackBoxSearch, estimate_answer_variance, fit_vae
from fedcel.attacks.decoder import apply_network
from fedcel.attacks.score_card import mean_image, mse
from fedcel.errors import SpentError
from fedcel.testing.attacks import AttackContract, LinearObservation, load_digit_targets
from fedcel.testing.attacks import make_stream as stream


class TestSearch(AttackContract):
    """The built-in one."""

    budget = 0.25
    share = 0.6

    def build(self) -> Attack:
        """Return it."""
        return BlackBoxSearch()


def test_never_more_queries_than_paid_for() -> None:
    """The budget's part of `queries` a target, beside two answers to 32 own images."""
    known, targets = load_digit_targets()
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
    x = torch.cat([load_digit_targets()[0].x] * 4)
    variance = estimate_answer_variance(
        LinearObservation("private-logits", sigma=sigma), x, stream()
    )
    assert variance == pytest.approx(sigma**2 * 31 / 32, rel=4 * (2 / (1000 * 31)) ** 0.5)


@dataclass(frozen=True)
class Service(LinearObservation):
    """Answers the same image the same, and each other one for pay, until nothing is left."""

    allowance: int = 500
    left: int = 500
    known: dict[bytes, torch.Tensor] = field(default_factory=dict)

    @property
    def paid(self) -> int:
        """Return how many images were asked about."""
        return len(self.known)

    def sample(self, images: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """Look each image up, or pay."""
        rows = []
        for image in images:
            name = image.numpy().tobytes()
            if name not in self.known:
                if self.paid == self.left:
                    raise SpentError("nothing is left")
                self.known[name] = super().sample(image[None], generator)[0]
            rows.append(self.known[name])
        return torch.stack(rows)


def test_noise_is_measured_where_an_image_has_one_answer() -> None:
    """By asking about another image that nobody could tell from the first."""
    x, sigma = load_digit_targets()[0].x, 0.5
    service = Service("private-logits", sigma=sigma, left=1000)
    variance = estimate_answer_variance(service, x, stream())
    assert variance == pytest.approx(sigma**2 * 31 / 32, rel=4 * (2 / (250 * 31)) ** 0.5)
    assert service.paid == 500


def searched(service: Service, lines: list[str], queries: int = 2000) -> torch.Tensor:
    """Return what a search of five targets finds with a hardly trained autoencoder."""
    known, targets = load_digit_targets()
    observed = LinearObservation("private-logits").sample(targets.x[:5], stream())
    search = BlackBoxSearch(epochs=10, queries=queries)
    return search.reconstruct(service, known, observed, 1.0, stream(), lines.append)


def test_an_allowance_lowers_the_number_of_queries() -> None:
    """Of 500, a quarter at most asks how noisy answers are: 2 * 32, and 7 rounds of 5 * 12.

    The autoencoder still learns for as long as the budget says.
    """
    service, lines = Service("private-logits"), list[str]()
    assert searched(service, lines).shape == (5, 1, 8, 8)
    assert service.paid == 2 * 32 + 7 * 60 <= service.allowance
    assert sum("prior epoch" in line for line in lines) == 10
    assert lines[-1].startswith("queries 84/84")


def test_a_spent_budget_ends_the_search_with_the_best_so_far() -> None:
    """After 3 of 7 rounds: the same as if 3 had been wanted. Before the first there is nothing."""
    lines: list[str] = []
    early = searched(Service("private-logits", left=2 * 32 + 3 * 60 + 59), lines)
    assert lines[-1].startswith("queries 36/36, the budget is spent")
    assert torch.equal(early, searched(Service("private-logits"), lines, 36))
    with pytest.raises(SpentError, match="nothing is left"):
        searched(Service("private-logits", left=2 * 32 + 59), lines)
    with pytest.raises(SpentError, match="60 answers are allowed.* 60 .* fewer attack.targets"):
        searched(Service("private-logits", allowance=60), lines)


def test_latents_make_digits() -> None:
    """A digit drawn from the prior is nearer to some known one than the mean image is."""
    known, targets = load_digit_targets()
    attacker = Attacker(LinearObservation("private-logits"), known, 1.0, stream())
    decoder = fit_vae(attacker, 8, 60)
    made = apply_network(decoder, torch.randn(50, 8, generator=stream(1)))
    nearest = torch.cdist(made.flatten(1), known.x.flatten(1)).square().amin(1).mean() / 64
    assert nearest < 0.6 * mse(mean_image(targets.y, known), targets.x)
