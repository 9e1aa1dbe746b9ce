"""What every mechanism of private answers must hold."""

from collections.abc import Callable

import pytest
import torch
from jaxtyping import Float
from torch import Tensor

from fedcel.privacy import MECHANISM_CHECKS, Mechanism, MechanismCase, measure_epsilon
from fedcel.testing.check_names import name_check

CLASSES = 3
ANSWERS = 10_000
"""Drawn about each of two inputs."""
CONFIDENCE = 1 - 1e-6
"""At 95 % a valid mechanism would be called invalid once in some forty runs."""


def extreme_pairs() -> Float[Tensor, "pairs 2 C"]:
    """Return pairs of logits that clips leave as far apart as they may be."""
    first, second, _ = 1e3 * torch.eye(CLASSES, dtype=torch.float64)
    return torch.stack([torch.stack([first, -first]), torch.stack([first, second])])


class MechanismContract:
    """Tests that a mechanism of private answers must pass; see `fedcel.Mechanism`.

    Name your subclass `TestMine`, define `build`; pytest runs the rest.
    """

    def build(self) -> Mechanism:
        """Make your mechanism.

        Returns:
            A mechanism for 3 classes; epsilon about 1, a delta of .05 can be measured.
        """
        raise NotImplementedError

    @pytest.mark.parametrize("check", MECHANISM_CHECKS, ids=name_check)
    def test_it_passes_what_every_run_checks(self, check: Callable[[MechanismCase], None]) -> None:
        """The short form of the contract, to which every run holds a mechanism of your own."""
        check(MechanismCase(self.build, CLASSES))

    def test_it_says_what_it_protects_in_a_sentence(self) -> None:
        """Which pages and the service's answers show."""
        assert isinstance(self.build(), Mechanism)
        assert self.build().protects.endswith(".")

    def test_another_number_of_classes_is_refused(self) -> None:
        """What an answer costs may depend on their number."""
        for classes in (CLASSES - 1, CLASSES + 1):
            assert refuses(self.build(), torch.zeros(2, classes)), classes

    def test_no_seed_repeats_the_noise(self) -> None:
        """Torch's global generator decides nothing and is not drawn from."""
        before = torch.random.get_rng_state()
        answers = []
        for _ in range(2):
            torch.manual_seed(7)
            answers.append(self.build().answer(torch.zeros(500, CLASSES)))
            assert torch.equal(torch.random.get_rng_state(), manual_state(7))
        torch.random.set_rng_state(before)
        assert not torch.equal(*answers)

    def test_no_attacker_measures_more_than_epsilon(self) -> None:
        """Answers about inputs as far apart as they may be, told apart by the best threshold."""
        for pair in extreme_pairs():
            mechanism = self.build()
            assert measure_epsilon(mechanism, pair, ANSWERS, CONFIDENCE) <= mechanism.epsilon


def manual_state(seed: int) -> Tensor:
    """Return the state of a generator that was just seeded."""
    return torch.Generator().manual_seed(seed).get_state()


def refuses(mechanism: Mechanism, logits: Float[Tensor, "B C"]) -> bool:
    """Say whether the mechanism answers with a ValueError."""
    try:
        mechanism.answer(logits)
    except ValueError:
        return True
    return False
