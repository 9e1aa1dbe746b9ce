"""The law of an observation, bound to images: known, equal or refused."""

import pytest
import torch

from fedcel.attacks.averaging import RepeatedObservation
from fedcel.leakage import UPDATE
from fedcel.leakage.observation import find_law
from fedcel.testing.attacks import LinearObservation, load_digit_targets
from tests.fedcel.seeded import pixels


def test_several_of_one_add_up() -> None:
    """Three observations say what each says, added."""
    seen, x = LinearObservation("own"), load_digit_targets()[1].x
    many = RepeatedObservation(seen, 3)
    observed = many.sample(x, torch.Generator())
    each = list(map(seen.law_of(x), torch.chunk(observed, 3, 1)))
    assert torch.equal(find_law(many, x)(observed), each[0] + each[1] + each[2])


@pytest.mark.parametrize("repeats", [1, 2])
def test_without_noise_it_is_equality(repeats: int) -> None:
    """0 for an image with the same code, minus infinity for another."""
    seen = RepeatedObservation(pixels(0.0), repeats)
    x = torch.tensor([0.0, 0.5, 0.5]).view(3, 1, 1, 1)
    same = torch.tensor([[1.0, 0, 0], [0, 1, 1], [0, 1, 1]]).double().log()
    assert torch.equal(find_law(seen, x)(seen.sample(x, torch.Generator())), same)


def test_what_is_not_known_is_refused() -> None:
    """Before any work, with the name of what is not granted."""
    closed = LinearObservation("answers", grants=frozenset({UPDATE}))
    with pytest.raises(ValueError, match="'answers' does not grant 'log-prob'"):
        find_law(closed, load_digit_targets()[1].x)
