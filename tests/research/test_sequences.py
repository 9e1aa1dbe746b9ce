"""Messages of similar images: closed forms of what they tell together."""

import math

import numpy as np
import pytest
import torch

from sequences import SequenceLeak, measure_sequences

LENGTHS = (1, 2, 4, 9)


def two_points_bits(distance: float, noise: float) -> float:
    """Return I(sign; z) in bits for z = +-distance/2 plus Gaussian noise, by integration."""
    half = distance / (2 * noise)
    t = np.linspace(-12, 12 + half, 400_001)
    density = np.exp(-((t - half) ** 2) / 2) / math.sqrt(2 * math.pi)
    return 1 - float(np.trapezoid(density * np.logaddexp(0, -2 * half * t) / math.log(2), t))


def measure(features: torch.Tensor, noise: float, draws: int = 1000) -> list[SequenceLeak]:
    labels = torch.zeros(len(features), dtype=torch.long)
    stream = torch.Generator().manual_seed(0)
    return measure_sequences(features, labels, noise, stream, lengths=LENGTHS, draws=draws)


def test_repeats_of_an_image_average_the_noise_out() -> None:
    """M messages of one of two points tell what one with noise sigma / sqrt(M) tells."""
    features = torch.tensor([[[0.0, 0.0]], [[0.6, 0.8]]])
    for leak in measure(features, noise=2.0):
        expected = two_points_bits(1.0, 2.0 / math.sqrt(leak.messages))
        assert leak.bits == pytest.approx(expected, abs=0.03)
        assert leak.cap == 1.0


def test_messages_never_tell_more_than_their_sum() -> None:
    """Nearly the sum where each tells little; the cap where they tell all."""
    faint = measure(torch.tensor([[[0.0]], [[1.0]]]), noise=2.0, draws=1000)
    assert all(leak.bits <= leak.messages * two_points_bits(1.0, 2.0) + 0.04 for leak in faint)
    clear = measure(torch.tensor([[[0.0]], [[9.0]]]), noise=0.5, draws=50)
    assert [leak.bits for leak in clear] == pytest.approx([1.0] * 4, abs=1e-3)


def test_variants_that_two_subjects_share_tell_nothing() -> None:
    """The same pictures under another name; what one alone has tells half a bit by chance .5."""
    shared = torch.tensor([[[0.0], [9.0]], [[0.0], [9.0]]])
    assert [leak.bits for leak in measure(shared, 0.5, 50)] == pytest.approx([0.0] * 4, abs=1e-9)
    # z = 9 is of the first alone; z = 0 then says 2/3 for the other: I = H(1/4) - H(1/2)/2 bits
    half = torch.tensor([[[0.0], [9.0]], [[0.0], [0.0]]])
    entropy = -(0.25 * math.log2(0.25) + 0.75 * math.log2(0.75))
    assert measure(half, 0.5)[0].bits == pytest.approx(entropy - 0.5, abs=0.04)


def test_the_class_is_not_counted() -> None:
    """Subjects alone in their classes have nothing left to tell."""
    features = torch.randn(3, 2, 4, generator=torch.Generator().manual_seed(0))
    leaks = measure_sequences(features, torch.arange(3), 0.1, torch.Generator(), lengths=[1, 3])
    assert [(leak.bits, leak.cap) for leak in leaks] == [(0.0, 0.0)] * 2


def test_what_is_no_length_or_noise_is_refused() -> None:
    """Both with what is allowed."""
    features, labels = torch.zeros(2, 1, 1), torch.zeros(2, dtype=torch.long)
    with pytest.raises(ValueError, match="lengths are"):
        measure_sequences(features, labels, 0.1, torch.Generator(), lengths=[0])
    with pytest.raises(ValueError, match="noise"):
        measure_sequences(features, labels, 0.0, torch.Generator(), lengths=[1])
