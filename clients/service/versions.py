"""Model versions that are served at the same time: the newest, and replaced ones for a while.

Devices that hold an older encoder are answered until the grace ends. All versions charge the same
ledger, so that a client's budget holds across them.
"""

from collections.abc import Callable
from typing import NamedTuple

from clients.service.model import ServedModel
from clients.service_messages import ExpectedCard, ModelCard
from fedcel.errors import SettingsError
from fedcel.privacy import AnswerCalibration, Mechanism


class ModelOffer(NamedTuple):
    """A model with its price and what its answers are worth, before it is served."""

    model: ServedModel
    mechanism: Mechanism
    calibration: AnswerCalibration
    expected: ExpectedCard | None = None
    """Measured on test images; None where nobody did."""


class Reload(NamedTuple):
    """How a service gets a new model version while it runs."""

    load: Callable[[], ModelOffer]
    """Reads the run again; raises where it cannot be served."""
    grace_seconds: float
    """How long the replaced version is still answered."""


class ServedVersion(NamedTuple):
    """A model version that is answered."""

    offer: ModelOffer
    card: ModelCard


def check_same_price(old: ModelOffer, new: ModelOffer) -> None:
    """Refuse the same tensors at another price, which devices could not see: SettingsError."""
    if old.model.privacy != new.model.privacy:
        raise SettingsError(
            f"the settings of the group privacy changed, but the model is still "
            f"{new.model.version}: devices that know its price would pay another; restart the "
            "service to change it"
        )
