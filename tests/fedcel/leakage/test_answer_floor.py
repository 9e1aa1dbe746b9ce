"""Bits in answers, against closed forms and known laws."""

from math import log, log2

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import one_hot

from fedcel.leakage import answer_bits
from tests.fedcel.seeded import seeded

Y = torch.arange(40) % 2


def entropy(p: torch.Tensor) -> torch.Tensor:
    """Return the entropy of each row of probabilities, in bits."""
    return -torch.xlogy(p, p).sum(-1) / log(2)


def plug_in_bits(answers: torch.Tensor, labels: torch.Tensor, classes: int) -> float:
    """Return H(answer | label) - H(answer | image) in bits, both of the frequencies counted.

    Never too small in expectation: information is convex in the law of the answer given the image
    (Cover and Thomas, 2006, theorem 2.7.4), so that frequencies in its place raise it.
    """
    law = one_hot(answers, classes).double().mean(0)
    total = 0.0
    for label in torch.unique(labels):
        rows = law[labels == label]
        total += len(rows) * float(entropy(rows.mean(0)) - entropy(rows).mean())
    return total / len(labels)


def sure(answer: torch.Tensor, draws: int = 256) -> torch.Tensor:
    """Return answers that no noise changes."""
    return answer.repeat(draws, 1)


@pytest.mark.parametrize("bits", [answer_bits, plug_in_bits])
@pytest.mark.parametrize("answer", [Y, 1 - Y, torch.zeros_like(Y)])
def test_one_answer_a_class_tells_nothing(bits, answer: torch.Tensor) -> None:
    """Perfect, always wrong, constant: 0 beyond the label."""
    assert bits(sure(answer), Y, 2) == pytest.approx(0, abs=1e-12)


def test_known_errors() -> None:
    """5 of 20 of class 0 wrong, without chance: H(1/4) for it, 0 for the other, half each."""
    answer = Y.clone()
    answer[:10:2] = 1
    want = (log2(4) / 4 + 3 / 4 * log2(4 / 3)) / 2
    assert plug_in_bits(sure(answer), Y, 3) == pytest.approx(want)
    bits = answer_bits(sure(answer), Y, 3)
    assert want - 0.01 < bits <= want


def test_answers_by_chance_tell_nothing() -> None:
    """The same law for all images: the plug-in is above 0, the bound is not."""
    drawn = torch.randint(4, (64, 40), generator=seeded(0))
    assert plug_in_bits(drawn, Y, 4) > 0.02
    assert -0.05 < answer_bits(drawn, Y, 4) <= 0


@settings(deadline=None, max_examples=12)
@given(st.integers(0, 2**31), st.floats(0.5, 6))
def test_between_the_bounds(seed: int, sharpness: float) -> None:
    """Averaged over 8 repeats: bound <= truth <= plug-in, and both near it."""
    stream = seeded(seed)
    law = (sharpness * torch.randn(40, 4, generator=stream)).softmax(1).double()
    truth = sum(
        float(entropy(law[c == Y].mean(0)) - entropy(law[c == Y]).mean()) / 2 for c in (0, 1)
    )
    drawn = [torch.multinomial(law, 256, True, generator=stream).T for _ in range(8)]
    low = sum(answer_bits(a, Y, 4) for a in drawn) / 8
    high = sum(plug_in_bits(a, Y, 4) for a in drawn) / 8
    assert truth - 0.05 < low < truth + 0.006
    assert truth - 0.006 < high < truth + 0.03


def test_refuses_a_single_draw() -> None:
    """Nothing is left to count on."""
    with pytest.raises(ValueError, match="1 draw, must hold at least 2"):
        answer_bits(Y[None], Y, 2)
