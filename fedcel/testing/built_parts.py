"""Contracts that are lists of checks beside a protocol, held to one part that is built anew."""

from collections.abc import Callable

import torch

from fedcel.losses import CEL_TESTS, DEFENCE_TESTS, ClientLoss, LossCase
from fedcel.losses.defences import TRANSFORM_TESTS, Transform, TransformCase
from fedcel.nets import NET_TESTS, Cut, NetCase, NetSettings, SplitNet, build_net
from fedcel.plugins import hold_contract
from fedcel.privacy import MECHANISM_TESTS, Mechanism, MechanismCase


def check_cel(build: Callable[[], ClientLoss], *, shift_invariant: bool = True) -> None:
    """Hold a conditional entropy loss to its contract, see `fedcel.ClientLoss`.

    Args:
        build: Makes your loss, of 4 features and 3 classes; its penalty must not be flat at
            spread 4.
        shift_invariant: False for a loss that changes when one number is added to all values.
    """
    case = LossCase(build, features=4, least=0.0, shift_invariant=shift_invariant)
    hold_contract(CEL_TESTS, case)


def check_defence(build: Callable[[], ClientLoss]) -> None:
    """Hold a defence with a loss to its contract, see `fedcel.ClientLoss`.

    Args:
        build: Makes your defence, of images (1, 4, 4) with 4 features.
    """
    hold_contract(DEFENCE_TESTS, LossCase(build, features=4, shape=(1, 4, 4)))


def check_transform(build: Callable[[], Transform]) -> None:
    """Hold a defence that changes features to its contract, see `Transform`.

    Args:
        build: Makes your transform, of 12 features.
    """
    z = torch.rand(7, 12, generator=torch.Generator().manual_seed(1))
    hold_contract(TRANSFORM_TESTS, TransformCase(build(), z))


def check_mechanism(build: Callable[[], Mechanism]) -> None:
    """Hold a mechanism of private answers to its contract, see `fedcel.privacy.Mechanism`.

    Args:
        build: Makes your mechanism, for 3 classes; epsilon about 1, a delta of .05 can be measured.
    """
    hold_contract(MECHANISM_TESTS, MechanismCase(build, 3))


def check_net(
    name: str,
    *,
    shape: tuple[int, int, int] = (1, 8, 8),
    bounded: bool = True,
    features: int = 12,
    width: int = 16,
) -> None:
    """Hold a split network to its contract; it is built as a run does, for 3 classes.

    Args:
        name: Import string of your builder, as `net.name` would have it.
        shape: Of an image, (C, H, W).
        bounded: False for an encoder whose features may grow without limit: it may outgrow any
            noise.
        features: The setting `net.features`.
        width: The setting `net.width`.
    """
    settings = NetSettings.model_validate({"name": name, "features": features, "width": width})

    def build(seed: int = 1) -> SplitNet:
        return build_net(settings, shape, 3, torch.Generator().manual_seed(seed), cut=Cut())

    hold_contract(NET_TESTS, NetCase(build, shape, 3, bounded))
