"""Descent on pixels, and the attacks that search by it."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedcel.attacks.attack import Attack
from fedcel.attacks.averaging import AveragedObservation, RepeatedObservation
from fedcel.attacks.decoder import Decoder
from fedcel.attacks.kernel_ridge import KernelRidge
from fedcel.attacks.pixel_descent import (
    RMLE,
    DescentSteps,
    HybridInversion,
    add_proximal_term,
    descend_pixels,
    total_variation,
)
from fedcel.attacks.score_card import mse
from fedcel.leakage import SmashedData
from fedcel.nets.cut import Cut
from fedcel.nets.split_net import SplitNet
from fedcel.testing.attacks import (
    check_attack,
    load_digit_targets,
)
from fedcel.testing.attacks import make_stream as stream
from tests.fedcel.attacks.undefended import class_means, mean_image, train_undefended
from tests.fedcel.seeded import pixels, seeded


def test_minimum_inside_and_at_the_edge() -> None:
    """|x - c|^2 from grey: c where it is in [0, 1], else the nearest pixel that is."""
    centre = torch.tensor([0.2, 0.9, 1.7, -0.3]).view(4, 1, 1, 1)
    rebuilt = descend_pixels(
        lambda x: (x - centre).square().flatten(1).sum(1), torch.full((4, 1, 1, 1), 0.5), STEPS
    )
    torch.testing.assert_close(rebuilt.flatten(), torch.tensor([0.2, 0.9, 1, 0]), atol=1e-3, rtol=0)


STEPS = DescentSteps(300, 0.05)


def test_rows_do_not_mix() -> None:
    """A row's path is the same alone and among others."""
    x = torch.rand(5, 1, 4, 4, generator=seeded(1))

    def loss(images: torch.Tensor) -> torch.Tensor:
        return (images.flatten(1).sum(1) - 3).square() + 0.1 * total_variation(images)

    together = descend_pixels(loss, x, DescentSteps(20, 0.05))
    torch.testing.assert_close(descend_pixels(loss, x[2:3], DescentSteps(20, 0.05)), together[2:3])


@settings(deadline=None)
@given(st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_total_variation_by_hand(a: float, b: float) -> None:
    """Two halves: one jump of |a - b| in each row of 4, of the 3 gaps; nothing down."""
    image = torch.full((1, 1, 4, 4), a)
    image[..., 2:] = b
    wanted = abs(a - b) / 3
    torch.testing.assert_close(total_variation(image), torch.tensor([wanted]), atol=1e-6, rtol=0)


def test_rmle_holds_the_contract() -> None:
    """A prior of smooth images alone gets no nearer."""
    check_attack(RMLE, budget=0.1, share=0.4)


def test_without_noise_far_below_the_class_mean() -> None:
    """A trained layer without noise: a third of what the label tells, or less."""
    known, targets = load_digit_targets()
    seen = SmashedData(train_undefended(0.0, 1))
    observed = seen.sample(targets.x, stream())
    rebuilt = RMLE().reconstruct(seen, known, observed, 0.2, stream(1))
    assert mse(rebuilt, targets.x) < 0.4 * mse(class_means(targets.y, known), targets.x)


def test_as_many_features_as_pixels_is_exact() -> None:
    """The identity as encoder, no noise: every pixel is found."""
    known, targets = load_digit_targets()
    rebuilt = RMLE().reconstruct(pixels(0.0), known, targets.x.flatten(1), 0.2, stream())
    assert mse(rebuilt, targets.x) < 1e-5


def test_noise_chooses_a_short_search() -> None:
    """Noise as large as the signal: fitting it is worse than stopping early, and that is seen."""
    known, targets = load_digit_targets()
    seen = SmashedData(train_undefended(3.0, 1))
    observed = seen.sample(targets.x, stream())
    greedy = RMLE()
    greedy.weights, greedy.shares = (0.0,), (1.0,)
    errors = [
        mse(attack.reconstruct(seen, known, observed, 0.2, stream(1)), targets.x)
        for attack in (RMLE(), greedy)
    ]
    assert errors[0] < 0.7 * errors[1]


def test_the_hybrid_holds_the_contract() -> None:
    check_attack(HybridInversion)


@pytest.mark.parametrize("sigma", [0.1, 1.0])
def test_better_than_what_it_starts_from(sigma: float) -> None:
    """On an undefended net: below both decoders, little noise or much; half the class mean's."""
    known, targets = load_digit_targets()
    seen = SmashedData(train_undefended(sigma, 2))
    observed = seen.sample(targets.x, stream())
    errors = [
        mse(attack.reconstruct(seen, known, observed, 0.25, stream(1)), targets.x)
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
    attack = HybridInversion()
    attack.ties = (0.01,)
    rebuilt = attack.reconstruct(seen, known, observed, 0.2, stream(1))
    assert mse(rebuilt, targets.x) < 1.1 * mse(mean_image(targets.y, known), targets.x)


@pytest.mark.parametrize(
    ("attack", "sigma", "budget"),
    [
        (RMLE(), 0.0, 0.1),
        (RMLE(), 0.1, 0.1),
        pytest.param(HybridInversion(), 0.1, 0.5, marks=pytest.mark.long),
    ],
)
def test_under_dropout_the_law_beats_the_gap_to_the_mean(
    attack: Attack, sigma: float, budget: float
) -> None:
    """Four values in ten dropped: what came through is fitted, not (1 - p) z to all of it."""
    known, targets = load_digit_targets()
    net = train_undefended(sigma)
    seen = SmashedData(SplitNet(net.encoder, net.head, Cut(sigma, 0.4), net.features))
    observed = seen.sample(targets.x, stream())
    lawless = AveragedObservation(RepeatedObservation(seen, 1))  # a mean of answers offers no law
    law, gap = (
        mse(attack.reconstruct(surface, known, observed, budget, stream(1)), targets.x)
        for surface in (seen, lawless)
    )
    assert law < 0.9 * gap


def test_tie_by_hand() -> None:
    """The loss is 1 + mu times the mean squared distance."""
    centre, images = torch.zeros(2, 1, 2, 2), torch.full((2, 1, 2, 2), 0.5)
    loss = add_proximal_term(lambda x: torch.ones(len(x)), centre, torch.tensor([1.0, 4.0]))
    assert loss(images).tolist() == [1.25, 2.0]
