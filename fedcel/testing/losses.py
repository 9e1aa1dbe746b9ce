"""Contract suites of losses and of changes of what is sent."""

from collections.abc import Callable

import pytest
import torch

from fedcel.losses.cel import CEL_TESTS, CELCase, ConditionalEntropy
from fedcel.losses.defences import (
    DEFENCE_TESTS,
    TRANSFORM_TESTS,
    Defence,
    DefenceCase,
    Transform,
    TransformCase,
)
from fedcel.testing.check_names import name_check


class CELContract:
    """Tests that a conditional entropy loss must pass; see `ConditionalEntropy`.

    Name your subclass `TestMine`, define `build`; pytest runs the rest.

    Attributes:
        shift_invariant: False for a loss that changes when one number is added to all values.
    """

    shift_invariant = True

    def build(self) -> ConditionalEntropy:
        """Make your loss.

        Returns:
            A loss of 4 features and 3 classes; its penalty must not be flat at spread 4.
        """
        raise NotImplementedError

    @pytest.mark.parametrize("check", CEL_TESTS, ids=name_check)
    def test_contract(self, check: Callable[[CELCase], None]) -> None:
        """Each line of the contract."""
        check(CELCase(self.build, 4, 3, self.shift_invariant))


class DefenceContract:
    """Tests that a defence with a loss must pass; see `fedcel.losses.defences.Defence`.

    Name your subclass `TestMine`, define `build`; pytest runs the rest.
    """

    def build(self) -> Defence:
        """Make your defence.

        Returns:
            A defence of images (1, 4, 4) with 4 features.
        """
        raise NotImplementedError

    @pytest.mark.parametrize("check", DEFENCE_TESTS, ids=name_check)
    def test_contract(self, check: Callable[[DefenceCase], None]) -> None:
        """Each line of the contract."""
        check(DefenceCase(self.build, (1, 4, 4), 4))


class TransformContract:
    """Tests that a defence which changes features must pass; see `Transform`.

    Name your subclass `TestMine`, define `build`; pytest runs the rest.
    """

    def build(self) -> Transform:
        """Make your transform.

        Returns:
            A transform of 12 features.
        """
        raise NotImplementedError

    @pytest.mark.parametrize("check", TRANSFORM_TESTS, ids=name_check)
    def test_contract(self, check: Callable[[TransformCase], None]) -> None:
        """Each line of the contract."""
        z = torch.rand(7, 12, generator=torch.Generator().manual_seed(1))
        check(TransformCase(self.build(), z))
