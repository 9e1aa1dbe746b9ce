"""Model versions that are served at the same time: the newest, and replaced ones for a while.

Devices that hold an older encoder are answered until the grace ends. All versions charge the same
ledger, so that a client's budget holds across them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, final

from clients.service.answering import PrivateAnswerer, Query
from clients.service.charged_answers import PrivateAnswer
from clients.service.model import ServedModel
from clients.service_messages import ExpectedCard, ModelCard
from fedcel.errors import SettingsError
from fedcel.privacy import AnswerCalibration, Mechanism
from fedcel.privacy.ledger import Refusal


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


@final
@dataclass(frozen=True)
class ServedVersion:
    """A model version that is answered."""

    offer: ModelOffer
    card: ModelCard
    answerer: PrivateAnswerer


def check_same_price(old: ModelOffer, new: ModelOffer) -> None:
    """Refuse the same tensors at another price, which devices could not see: SettingsError."""
    if old.model.privacy != new.model.privacy:
        raise SettingsError(
            f"the settings of the group privacy changed, but the model is still "
            f"{new.model.version}: devices that know its price would pay another; restart the "
            "service to change it"
        )


def answer_by_version(
    batch: Sequence[tuple[ServedVersion, Query]],
) -> list[PrivateAnswer | Refusal]:
    """Answer queries, each by the version that it was made for; LedgerError as of an answerer.

    A batch for one version alone is one transaction of the ledger, as it is without a change.
    """
    places: dict[str, list[int]] = {}
    for place, (version, _) in enumerate(batch):
        places.setdefault(version.offer.model.version, []).append(place)
    replies: dict[int, PrivateAnswer | Refusal] = {}
    for rows in places.values():
        answers = batch[rows[0]][0].answerer.answer([batch[row][1] for row in rows])
        replies.update(zip(rows, answers, strict=True))
    return [replies[place] for place in range(len(batch))]
