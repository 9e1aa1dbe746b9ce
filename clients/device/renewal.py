"""A new model version: its encoder is fetched and measured before an image is encoded with it."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple, Protocol, final, runtime_checkable

from torch import nn

from clients.device.conversation import Conversation, request_card, request_encoder
from clients.device.device import Device
from clients.service_messages import ModelCard
from fedcel.errors import LeakError, ServiceError
from fedcel.nets import SplitNet


@runtime_checkable
class DeviceBuilder(Protocol):
    """Who makes a device of what a service sent."""

    @property
    def encoder(self) -> nn.Module | None:
        """Return a module of the caller's own, into which the received values go; or None."""
        ...

    def build_device(self, card: ModelCard, net: SplitNet) -> Device:
        """Make a device, or refuse the encoder.

        Args:
            card: The served model's card.
            net: The received encoder and cut.

        Returns:
            The device.

        Raises:
            LeakError: The encoder leaks more than is allowed.
        """
        ...


class MeasuredVersion(NamedTuple):
    """A model version that may be asked: its encoder passed the owner's measurement."""

    card: ModelCard
    device: Device


@final
@dataclass
class EncoderSource:
    """Fetches encoders and has them measured, the first one and those that replace it.

    Args:
        key: The client's API key.
        builder: Who measures an encoder and makes a device of it.
        file: Where the encoder is in place of the download; None: it is downloaded.
    """

    key: str = field(repr=False)
    builder: DeviceBuilder
    file: str | Path | None = None
    _refusals: dict[tuple[str, float, float], str] = field(default_factory=dict, init=False)
    """Why encoders were refused: a leak near the limit must not pass at the tenth measurement."""

    def request(self) -> Conversation[tuple[ModelCard, SplitNet]]:
        """Return the served model's card and the device's half of it."""
        card = yield from request_card(self.key)
        return card, (yield from self._request_net(card))

    def request_newer(
        self, current: MeasuredVersion, *, may_be_back: bool
    ) -> Conversation[tuple[ModelCard, SplitNet] | None]:
        """Return what replaced a version, for the same images, classes and price.

        None where the version is served again, if that `may_be`. ServiceError where it is something
        else, LeakError where its encoder was refused before.
        """
        card = yield from request_card(self.key)
        if may_be_back and card.model == current.card.model:
            return None
        check_successor(current.card, card)
        if reason := self._refusals.get(identify_encoder(card)):
            raise LeakError(reason)
        return card, (yield from self._request_net(card))

    def measure(
        self, card: ModelCard, net: SplitNet, current: MeasuredVersion | None = None
    ) -> MeasuredVersion:
        """Return a version with a device of its own; LeakError where its encoder leaks too much.

        The device takes over the key and the record of what was sent, so that limits of all
        messages hold across versions.
        """
        try:
            device = self.builder.build_device(card, net)
        except LeakError as error:
            self._refusals[identify_encoder(card)] = f"model {card.model}: {error}"
            raise
        if current is not None:
            device = replace(device, key=current.device.key, sent=current.device.sent)
        return MeasuredVersion(card, device)

    def _request_net(self, card: ModelCard) -> Conversation[SplitNet]:
        return request_encoder(self.key, card, self.builder.encoder, self.file)


def identify_encoder(card: ModelCard) -> tuple[str, float, float]:
    """Return what a leak depends on: an encoder's digest and its cut."""
    return card.encoder.sha256, card.sigma, card.dropout


def check_successor(current: ModelCard, newer: ModelCard) -> None:
    """Refuse a version that an asker has to be told of: ServiceError."""
    if newer.model == current.model:
        raise ServiceError(
            f"the service refuses model {current.model}, but its /v1/model states it; several "
            "services behind one address may differ for a while, ask again later"
        )
    if (newer.shape, newer.classes) != (current.shape, current.classes):
        raise ServiceError(
            f"model {newer.model} is served now, with images {newer.shape} and {newer.classes} "
            f"classes, so far {current.shape} and {current.classes}; connect anew to ask it"
        )
    prices = [(card.price.answer, card.price.uncertainty, card.delta) for card in (newer, current)]
    if any(price > earlier for price, earlier in zip(*prices, strict=True)):
        raise ServiceError(
            f"model {newer.model} is served now, an answer costs epsilon {newer.price.answer:g} "
            f"and {newer.price.uncertainty:g} for its uncertainty at delta {newer.delta:g}, so far "
            f"{current.price.answer:g} and {current.price.uncertainty:g} at {current.delta:g}; "
            "connect anew to pay it"
        )
