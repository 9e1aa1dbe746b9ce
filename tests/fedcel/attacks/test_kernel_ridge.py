"""Kernel ridge regression against others' code, and what it is worth."""

import pytest
import torch
from sklearn.kernel_ridge import KernelRidge as Theirs
from sklearn.linear_model import Ridge
from torch import Tensor

from fedcel.attacks import kernel_ridge
from fedcel.attacks.attack import Attack
from fedcel.attacks.decoder import Decoder
from fedcel.attacks.kernel_ridge import (
    Kernel,
    KernelRidge,
    Pairs,
    list_kernels,
    ridge_penalty,
    solve_regression,
)
from fedcel.attacks.score_card import mse
from fedcel.data.images import Images
from fedcel.leakage import SmashedData
from fedcel.nets.cut import Cut
from fedcel.nets.split_net import SplitNet
from fedcel.testing.attacks import (
    LinearObservation,
    check_attack,
    load_digit_targets,
)
from fedcel.testing.attacks import make_stream as stream
from tests.fedcel.attacks.undefended import mean_image, train_undefended


def made(attack: Attack, observation: SmashedData | LinearObservation) -> float:
    """Return the attack's error on the targets."""
    known, targets = load_digit_targets()
    observed = observation.sample(targets.x, stream(5))
    return mse(attack.reconstruct(observation, known, observed, 1.0, stream(1)), targets.x)


def test_it_holds_the_contract() -> None:
    """Without a defence it is a stronger attack than the suite asks for."""
    check_attack(KernelRidge, share=0.15)


def test_a_budget_is_never_without_effect() -> None:
    """Effort grows as the cube of the messages, also where each image has but one."""
    for images, usual in ((2000, 2000), (200, 400), (100, 500), (700, 700)):
        assert kernel_ridge.count_rows(images, 500, 1.0) == usual
        assert kernel_ridge.count_rows(images, 500, 8 ** (1 / 3)) == pytest.approx(2 * usual)
        assert kernel_ridge.count_rows(images, 500, 0.5) == usual // 2


def data() -> tuple[Pairs, Tensor]:
    """Return messages with images, and other messages."""
    z, x = (torch.rand(40, n, generator=stream(n), dtype=torch.float64) for n in (5, 3))
    return Pairs(z, 0.2 + 0.6 * x, torch.arange(40)), torch.rand(
        7, 5, generator=stream(9), dtype=torch.float64
    )


@pytest.mark.parametrize("width", [None, 0.7])
def test_it_is_what_scikit_learn_computes(width: float | None) -> None:
    """Linear: ridge regression with an intercept; Gaussian: their kernel ridge."""
    known, asked = data()
    own = Kernel(known.z.mean(0), width)
    weight = ridge_penalty(0.01, torch.linalg.eigvalsh(own.matrix(known.z, known.z)))
    regression = solve_regression(own, known)
    rebuilt = regression.rebuild(regression.project(asked), 0.01)
    if width is None:
        theirs = Ridge(weight).fit(known.z, known.x).predict(asked)
    else:
        mean = known.x.mean(0)
        model = Theirs(alpha=weight, kernel="rbf", gamma=1 / width).fit(known.z, known.x - mean)
        theirs = model.predict(asked) + mean.numpy()
    torch.testing.assert_close(rebuilt, torch.from_numpy(theirs).clamp(0, 1), atol=1e-8, rtol=0)


def test_several_messages_of_an_image_are_rows_of_their_own() -> None:
    """Forty messages of ten images, as of forty images of which four each are equal."""
    pairs, asked = data()
    shared = Pairs(pairs.z, pairs.x[:10], torch.arange(10).repeat(4))
    apart = Pairs(pairs.z, pairs.x[:10].repeat(4, 1), torch.arange(40))
    rebuilt = [
        regression.rebuild(regression.project(asked), 0.01)
        for regression in (
            solve_regression(Kernel(pairs.z.mean(0), 0.7), p) for p in (shared, apart)
        )
    ]
    torch.testing.assert_close(*rebuilt, atol=1e-12, rtol=0)


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.long
def test_of_few_images_it_makes_more_than_a_network(layers: int) -> None:
    """On nets without a defence; the trained decoder is beaten by more than its seeds differ."""
    observation = SmashedData(train_undefended(0.1, layers))
    assert made(KernelRidge(), observation) < 0.9 * made(Decoder(), observation)


def test_where_all_messages_are_equal_it_gives_the_mean_image() -> None:
    """A collapsed encoder without noise."""
    known, targets = load_digit_targets()
    net = train_undefended()
    still = SplitNet(torch.nn.Sequential(net.encoder, Nothing()), net.head, Cut(0.0), 32)
    rebuilt = KernelRidge().reconstruct(
        SmashedData(still), known, torch.zeros(len(targets.y), 32), 1.0, stream()
    )
    torch.testing.assert_close(rebuilt, mean_image(targets.y, known), atol=0.02, rtol=0)
    assert len(list_kernels(torch.zeros(9, 3, dtype=torch.float64))) == 1


class Nothing(torch.nn.Module):
    """Give 0 whatever comes."""

    def forward(self, z: Tensor) -> Tensor:
        return 0 * z


def test_of_many_images_it_takes_as_many_as_it_may() -> None:
    """And of two one is held back."""
    known, targets = load_digit_targets()
    observed = LinearObservation("smashed-data").sample(targets.x, stream(5))
    for count in (2, 250):
        own = Images(known.x[:count], known.y[:count])
        attack = KernelRidge()
        attack.images, attack.rows = 100, 50
        lines: list[str] = []
        attack.reconstruct(
            LinearObservation("smashed-data"), own, observed, 1.0, stream(), lines.append
        )
        rows = 50 if count == 2 else 80
        assert lines[-1].startswith(f"row {5 * rows}/{5 * rows}, ")
