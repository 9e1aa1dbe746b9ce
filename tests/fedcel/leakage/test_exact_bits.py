"""The optimal attacker against channels whose information is known."""

from math import erfc, log, log2, pi, sqrt

import numpy as np
import pytest
import torch
from scipy.integrate import quad

from fedcel.errors import NetError
from fedcel.leakage.certificate import certificate
from fedcel.leakage.exact_bits import count_draws, optimal_leak, score_messages
from fedcel.leakage.messages import disturb_features
from fedcel.nets.cut import Cut
from interval_coverage import measure_coverage, measure_rare_coverage
from tests.fedcel.seeded import as_images, pixels
from tests.fedcel.seeded import seeded as stream


def two_point_bits(distance: float) -> float:
    """Return I(x; z) in bits of two equal points at +-distance/2 through unit noise, integrated."""

    def density(z: float, mean: float) -> float:
        return float(np.exp(-((z - mean) ** 2) / 2) / sqrt(2 * pi))

    def integrand(z: float) -> float:
        p, q = density(z, distance / 2), density(z, -distance / 2)
        return p * log(2 * p / (p + q)) / log(2)

    return float(quad(integrand, -8, 8 + distance / 2)[0])


@pytest.mark.parametrize("distance", [0.3, 1.0, 2.5])
def test_two_points(distance: float) -> None:
    """Information by numerical integration; identification 1 - Q(d/2); sd of the mean < .006."""
    x = as_images(torch.tensor([[0.0], [distance * 0.2]]))
    leak = optimal_leak(pixels(0.2), x, torch.zeros(2, dtype=torch.long), stream(), draws=20_000)
    assert abs(leak.information_bits - two_point_bits(distance)) < 0.015
    assert leak.bits_beyond_label == pytest.approx(leak.information_bits)
    right = 1 - erfc(distance / 2 / sqrt(2)) / 2
    assert abs(leak.identification - right) < 0.01


def test_draws_by_the_number_of_images() -> None:
    """At least 3 200 messages together, at least 8 of each image."""
    messages = disturb_features(torch.zeros(1, 1).double(), torch.ones(1).double())
    draws = [count_draws(messages, count) for count in (1, 90, 400, 999, 1000, 100_000)]
    assert draws == [3200, 36, 8, 8, 8, 8]


def test_half_width_over_noise_is_that_of_repetitions() -> None:
    """1.96 standard deviations of bits measured anew 80 times on the same images."""
    x, y = as_images(torch.rand(12, 2, generator=stream(1))), torch.arange(12) % 3
    leaks = [optimal_leak(pixels(0.4), x, y, stream(seed), draws=30) for seed in range(80)]
    for name, width in (
        ("information_bits", "information_noise_half_width"),
        ("bits_beyond_label", "beyond_noise_half_width"),
    ):
        bits, widths = ([getattr(leak, part) for leak in leaks] for part in (name, width))
        assert np.mean(widths) == pytest.approx(1.96 * float(np.std(bits)), rel=0.25)


def test_noise_moves_nothing_where_there_is_none() -> None:
    """Sigma 0: one draw tells all, without an error; more leave what 3 206 may have missed."""
    y = torch.arange(7) % 2
    for sigma, missed in ((0.0, (0.0, 0.0)), (1e-6, (log2(7), 2.0))):
        leak = optimal_leak(pixels(sigma), as_images(torch.arange(7.0)[:, None]), y, stream())
        assert leak.identification == 1
        widths = leak.information_noise_half_width, leak.beyond_noise_half_width
        assert widths == pytest.approx([-log(0.025) * bits / (7 * 458) for bits in missed])


@pytest.mark.parametrize(
    ("count", "sigma", "draws"),
    [
        (2, 0.5, None), (2, 1.0, 2), (2, 1.0, 8), (2, 2.0, None), (30, 0.15, None), (30, 0.2, 2),
        (30, 0.5, None), (100, 0.15, 2), (100, 0.3, 8),
    ],
)  # fmt: skip
def test_intervals_hold_the_truth(count: int, sigma: float, draws: int | None) -> None:
    """In 95 % of 400 seeds, less three standard errors, where errors are rare and draws few too."""
    for measure, found in measure_coverage(count, sigma, draws, 400).items():
        assert found.covered > 0.917, measure
        if draws is None and sigma >= 0.5 and count > 2:
            assert found.ratio < 1.05, measure


@pytest.mark.parametrize("dropout", [0.001, 0.002, None])
def test_intervals_hold_what_a_rare_message_costs(dropout: float | None) -> None:
    """One in a thousand looks exactly like the other image's: ten bits, often seen by none."""
    for measure, found in measure_rare_coverage(dropout, 400).items():
        assert found.covered >= 0.93, measure


def test_images_that_are_all_alike_may_miss_a_rare_one() -> None:
    """Of 20 images that are all identified, one in 5.4 of others may not be: -ln .025 / 20."""
    y = torch.zeros(20, dtype=torch.long)
    leak = optimal_leak(pixels(0.0), as_images(torch.arange(20.0)[:, None]), y, stream())
    assert leak.identification == 1
    assert leak.identification_half_width == pytest.approx(-log(0.025) / 20)
    assert leak.beyond_label_half_width == pytest.approx(-log(0.025) / 20 * log2(20))


def test_no_noise_counts_duplicates() -> None:
    """Sigma 0: a code shared by n images leaves log2 n bits, and 1/n of identification."""
    codes = torch.tensor([[0.0], [0.0], [0.5], [1.0]])
    leak = optimal_leak(pixels(0.0), as_images(codes), torch.tensor([0, 0, 0, 1]), stream())
    assert leak.information_bits == pytest.approx((1 + 1 + 2 + 2) / 4)
    assert leak.bits_beyond_label == pytest.approx((2 * log2(1.5) + log2(3)) / 4)
    assert leak.identification == pytest.approx(3 / 4)


def test_caps_of_uneven_classes() -> None:
    """The cap beyond the label is the mean over images of log2 of the own class's size."""
    y = torch.tensor([0, 0, 0, 0, 1, 1, 2])
    leak = optimal_leak(pixels(0.0), as_images(torch.arange(7.0)[:, None]), y, stream())
    assert leak.cap_beyond_label == pytest.approx((4 * 2 + 2 * 1) / 7)
    assert leak.bits_beyond_label == pytest.approx(leak.cap_beyond_label)


def test_dropout_to_a_value_that_is_there() -> None:
    """Codes 0 and 1: a dropped 1 looks like the 0 (Z channel), h((1-p)/2) - h(p)/2 bits."""

    def h(p: float) -> float:
        return -p * log2(p) - (1 - p) * log2(1 - p)

    x, y = as_images(torch.tensor([[0.0], [1.0]])), torch.zeros(2, dtype=torch.long)
    leak = optimal_leak(pixels(0.0, 0.3), x, y, stream(), draws=20_000)
    assert leak.information_bits == pytest.approx(h(0.35) - h(0.3) / 2, abs=0.015)
    assert leak.identification == pytest.approx(1 - 0.3 / 2, abs=0.01)


@pytest.mark.parametrize(("sigma", "dropout"), [(0.3, 0.3), (0.6, 0.7), (0.3, 0.0), (0.0, 0.5)])
def test_dropout_stays_below_the_certificate_of_the_noise(sigma: float, dropout: float) -> None:
    """Masking before or after the noise is one law: dropout processes a message that is bounded."""
    y = torch.arange(120) % 3
    codes = torch.eye(3)[y] + 0.3 * torch.randn(120, 3, generator=stream(1))
    leak = optimal_leak(pixels(sigma, dropout), as_images(codes), y, stream(), draws=30)
    bound = certificate(codes, y, sigma)
    assert leak.information_bits <= bound.bits + 1e-9
    assert leak.bits_beyond_label <= bound.bits_within_class + 1e-9
    assert leak.identification <= bound.identification
    plain = optimal_leak(pixels(sigma), as_images(codes), y, stream(), draws=30)
    assert leak.information_bits <= plain.information_bits


def test_refuses_what_is_not_known() -> None:
    """A surface without a likelihood, and a model that diverged."""
    x, y = as_images(torch.zeros(2, 1)), torch.zeros(2, dtype=torch.long)

    class Closed:
        name, grants = "private-logits", frozenset[str]()

        def sample(self, images: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
            return images.flatten(1)

    with pytest.raises(ValueError, match="'private-logits' does not grant 'log-prob'"):
        optimal_leak(Closed(), x, y, stream())
    with pytest.raises(NetError, match="NaN"):
        optimal_leak(pixels(0.1), x / 0, y, stream())
    with pytest.raises(ValueError, match="draws is 1, must be at least 2"):
        optimal_leak(pixels(0.1), x, y, stream(), draws=1)


def test_a_message_its_own_image_could_not_send_is_refused() -> None:
    """Instead of NaN bits: an encoder whose values depend on the batch."""
    sender, labels = torch.tensor([0]), torch.tensor([0, 0])
    impossible = torch.tensor([[-torch.inf, 0.0]], dtype=torch.float64)
    with pytest.raises(NetError, match="impossible for the image that sent it"):
        score_messages(impossible, sender, labels, 2)


def test_the_noise_alone_can_tell_an_image() -> None:
    """Equal features, noise of 1 and of 1000: which it is shows in the message's size."""
    scale = torch.tensor([[1.0], [1000.0]]).repeat(1, 8)
    z = torch.zeros(2, 8)
    seen = Cut(1.0).disturb(z, stream(), scale)
    law = Cut(1.0).log_prob(seen, z, scale)
    assert law.argmax(1).tolist() == [0, 1]
    assert float((law[:, 0] - law[:, 1]).abs().min()) > 10
