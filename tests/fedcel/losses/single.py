"""Losses of one client, made of their options."""

from typing import TypeVar

from fedcel.losses.cel import CEL, ConditionalEntropy, CutShape
from fedcel.losses.defences import Rival

RivalLoss = TypeVar("RivalLoss", bound=Rival)


def single(
    options: CEL, classes: int = 3, features: int = 4, sigma: float = 0.0
) -> ConditionalEntropy:
    """Return the loss of the batches of one client."""
    loss = options.bind(CutShape(classes, features, sigma))
    assert isinstance(loss, ConditionalEntropy)
    return loss


def options(**values: object) -> CEL:
    """Return the options of a kind, by the names of their fields."""
    return CEL.model_validate(values)


def bind_rival(
    options: RivalLoss,
    *,
    classes: int = 3,
    features: int = 4,
    sigma: float = 0.0,
    image: tuple[int, ...] = (1, 4, 4),
) -> RivalLoss:
    """Return a defence of one cut."""
    loss = options.bind(CutShape(classes, features, sigma, image=image), None)
    assert isinstance(loss, type(options))
    return loss
