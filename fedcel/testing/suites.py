"""Contract suites whose lines are those of `fedcel`: each is one case of `test_contract`."""

from collections.abc import Callable

import pytest
import torch

from fedcel.losses import CEL_TESTS, DEFENCE_TESTS, LossCase
from fedcel.losses.cel import ConditionalEntropy
from fedcel.losses.defences import TRANSFORM_TESTS, Defence, Transform, TransformCase
from fedcel.nets import NET_TESTS, Cut, NetCase, NetSettings, SplitNet, build_net
from fedcel.privacy import MECHANISM_TESTS, Mechanism, MechanismCase
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
    def test_contract(self, check: Callable[[LossCase], None]) -> None:
        """Each line of the contract."""
        is_invariant = self.shift_invariant
        check(LossCase.of_cel(self.build, features=4, shift_invariant=is_invariant))


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
    def test_contract(self, check: Callable[[LossCase], None]) -> None:
        """Each line of the contract."""
        check(LossCase.of_defence(self.build, features=4, shape=(1, 4, 4)))


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

    @pytest.mark.parametrize("check", MECHANISM_TESTS, ids=name_check)
    def test_contract(self, check: Callable[[MechanismCase], None]) -> None:
        """Each line of the contract."""
        check(MechanismCase(self.build, 3))


class NetContract:
    """Tests that a split network must pass.

    Name your subclass `TestMine`, set `name`; pytest runs the rest.

    Attributes:
        name: Import string of your builder, as `net.name` would have it.
        shape: Of an image, (C, H, W).
        bounded: False for an encoder whose features may grow without limit: it may outgrow any
            noise.
    """

    name: str
    shape: tuple[int, int, int] = (1, 8, 8)
    bounded = True

    def settings(self) -> NetSettings:
        """Make the kind of net; override it for keys beyond the name.

        Returns:
            The settings of the net.
        """
        return NetSettings.model_validate({"name": self.name, "features": 12, "width": 16})

    def build(self, seed: int = 1) -> SplitNet:
        """Build the net as a run would, without noise at the cut.

        Args:
            seed: Of the parameters.

        Returns:
            The net for 3 classes.
        """
        stream = torch.Generator().manual_seed(seed)
        return build_net(self.settings(), self.shape, 3, stream, cut=Cut())

    @pytest.mark.parametrize("check", NET_TESTS, ids=name_check)
    def test_contract(self, check: Callable[[NetCase], None]) -> None:
        """Each line of the contract."""
        check(NetCase(self.build, self.shape, 3, self.bounded))
