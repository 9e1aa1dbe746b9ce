"""Repeated observations: the exact law of m answers, and attacks on their mean."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedcel.attacks.averaging import AveragedObservation, Averaging, RepeatedObservation
from fedcel.attacks.decoder import Decoder
from fedcel.attacks.pixel_descent import RMLE
from fedcel.attacks.score_card import mse
from fedcel.leakage import (
    FIRST_LAYER,
    LOG_PROB,
    MEAN,
    UPDATE,
    optimal_leak,
)
from fedcel.testing.attacks import LinearObservation, check_attack, load_digit_targets
from fedcel.testing.attacks import make_stream as stream
from tests.fedcel.seeded import pixels


def test_it_holds_the_contract() -> None:
    """The decoder on the mean of four observations, under a name that a row may have."""

    def build() -> Any:
        attack = Averaging(Decoder(), 4)
        return SimpleNamespace(
            name="averaging",
            observes="smashed-data",
            needs=attack.needs,
            reconstruct=attack.reconstruct,
        )

    check_attack(build, observation=RepeatedObservation(LinearObservation("smashed-data"), 4))


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 9), st.floats(0.05, 2.0), st.integers(0, 2**32 - 1))
def test_law_is_that_of_the_mean(repeats: int, sigma: float, seed: int) -> None:
    """Gaussian noise: the mean of m is sufficient, with sd sigma/sqrt m; differences are equal."""
    x = torch.rand(6, 1, 1, 3, generator=stream(seed))
    many = RepeatedObservation(pixels(sigma), repeats)
    seen = many.sample(x, stream(seed))
    once = pixels(sigma / repeats**0.5).law_of(x)(many.average(seen))
    log_probs = many.law_of(x)(seen)
    torch.testing.assert_close(
        log_probs - log_probs[:, :1], once - once[:, :1], rtol=1e-3, atol=1e-3 / sigma**2
    )


def test_dropout_leaks_through_repeats_as_by_hand() -> None:
    """One value dropped with chance p: gone from all m answers with p^m, else fully known."""
    x = torch.arange(1.0, 9).view(8, 1, 1, 1)
    y = torch.zeros(8, dtype=torch.long)
    for repeats in (1, 3):
        seen = RepeatedObservation(pixels(0.0, 0.5), repeats)
        leak = optimal_leak(seen, x, y, stream(), draws=2000)
        assert leak.information_bits == pytest.approx(3 * (1 - 0.5**repeats), abs=0.05)


@pytest.mark.parametrize(("sigma", "repeats"), [(0.1, 16), (0.1, 4), (0.3, 16)])
def test_what_was_dropped_is_told_from_what_is_small(sigma: float, repeats: int) -> None:
    """Nearly the mean of the exact posterior, on a grid; far nearer than the messages' mean."""
    z = torch.randn(3000, 1, generator=stream())
    many = RepeatedObservation(pixels(sigma, 0.4), repeats)
    seen = many.sample(z.view(-1, 1, 1, 1), stream(1))
    averaged = many.average(seen) / 0.6
    grid = torch.linspace(-5, 5, 1001)
    chances = torch.zeros(len(z), len(grid)) - grid.square() / 2
    for part in torch.chunk(seen, repeats, 1):
        chances += torch.log(
            0.6 * torch.exp(-(part - grid).square() / (2 * sigma**2))
            + 0.4 * torch.exp(-part.square() / (2 * sigma**2))
            + 1e-30
        )
    least = (chances.softmax(1) @ grid - z[:, 0]).square().mean()
    error = (averaged - z).square().mean()
    assert least * 0.99 < error < 1.05 * least
    plain = seen.mean(1, keepdim=True) / 0.6
    assert error < (0.1 if (sigma, repeats) == (0.1, 16) else 0.4) * (plain - z).square().mean()


def test_no_value_shrinks() -> None:
    """A search that averages over many values would take that for the image."""
    z = torch.randn(20_000, 1, generator=stream())
    for sigma, dropout in ((0.3, 0.4), (1.0, 0.1)):
        many = RepeatedObservation(pixels(sigma, dropout), 16)
        averaged = many.average(many.sample(z.view(-1, 1, 1, 1), stream(1))) / (1 - dropout)
        slope = (averaged * z).mean() / z.square().mean()
        assert slope.item() == pytest.approx(1, abs=0.01)
        alone = many.average(many.sample(z.view(-1, 1, 1, 1), stream(1))[:1]) / (1 - dropout)
        torch.testing.assert_close(alone, averaged[:1])  # whoever else is asked about


def test_without_noise_what_came_through_once_is_known() -> None:
    """Values dropped from all messages are 0, the others exact; the gradient is the mean's."""
    z = torch.rand(40, 3, generator=stream()) + 0.5
    many = RepeatedObservation(pixels(0.0, 0.5), 4)
    averaged = many.average(many.sample(z.view(-1, 1, 1, 3), stream(1))) / 0.5
    came = averaged > 0
    torch.testing.assert_close(averaged[came], z[came])
    assert 0.9 < came.float().mean() < 1
    noisy = AveragedObservation(RepeatedObservation(pixels(0.3, 0.4), 4))
    code = z.clone().requires_grad_()
    noisy.disturb(code, stream()).sum().backward()
    assert code.grad is not None and code.grad.isfinite().all() and code.grad.mean() > 0.3


def test_a_search_sees_through_dropout_in_sixteen_messages() -> None:
    """With their mean alone it hardly comes below the variance of what was dropped."""
    known, targets = load_digit_targets()
    seen = RepeatedObservation(pixels(0.1, 0.4), 16)
    attack = Averaging(RMLE(), 16)
    rebuilt = attack.reconstruct(seen, known, seen.sample(targets.x, stream(1)), 0.1, stream(2))
    floor = float((targets.x.square() * 0.4 / 0.6 / 16).mean())
    assert mse(rebuilt, targets.x) < 0.5 * floor


def test_other_observations_are_asked_m_times() -> None:
    """Side by side: m different answers, whose average has 1/m of the variance."""
    seen = RepeatedObservation(LinearObservation("private-logits", sigma=1.0), 16)
    x = load_digit_targets()[0].x
    answers = seen.sample(x, stream())
    assert answers.shape == (len(x), 16 * 32)
    gap = seen.average(answers) - LinearObservation("private-logits").mean(x)
    assert gap.std().item() == pytest.approx(1 / 4, rel=0.05)


def test_what_a_mean_grants() -> None:
    """The mean's gradient, not the likelihood of a single observation."""
    inner = pixels(0.1)
    mean = AveragedObservation(RepeatedObservation(inner, 4))
    assert LOG_PROB in RepeatedObservation(inner, 4).grants
    assert LOG_PROB not in mean.grants
    assert MEAN in mean.grants
    x = torch.rand(2, 1, 1, 3, generator=stream())
    assert torch.equal(mean.mean(x), inner.mean(x))
    assert torch.equal(mean.answer(inner.mean(x)), inner.answer(inner.mean(x)))
    assert isinstance(mean.fresh_encoder(stream()), torch.nn.Flatten)


def test_no_mean_of_uploads() -> None:
    """What explains one upload explains no mean of several: neither is granted for them."""
    once = LinearObservation("update", grants=frozenset({UPDATE, FIRST_LAYER, LOG_PROB}))
    assert RepeatedObservation(once, 2).grants == {LOG_PROB}


def test_wrong_use_is_refused() -> None:
    """No repeats, or a single observation."""
    with pytest.raises(ValueError, match="repeats is 0"):
        RepeatedObservation(pixels(0.1), 0)
    single = LinearObservation("smashed-data")
    with pytest.raises(ValueError, match="is a single observation"):
        Averaging(Decoder(), 2).reconstruct(
            single, load_digit_targets()[0], torch.zeros(1, 64), 1.0, stream()
        )
