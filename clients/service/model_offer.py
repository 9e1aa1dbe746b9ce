"""Offer of a service: the model of a run, its mechanism, and the card that states both."""

from collections.abc import Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import stack_module_state

from clients.service.private_answers import ServedModel
from clients.service_messages import (
    MAX_VALUE,
    EncoderCard,
    ExpectedCard,
    LeakCard,
    ModelCard,
    PriceCard,
)
from fedcel.attacks import MeasuredLeak
from fedcel.errors import RunError, SettingsError
from fedcel.nets import FlatNet
from fedcel.posterior import build_device_net
from fedcel.privacy import AnswerCalibration, Mechanism
from fedcel.privacy.ledger import MICRO, to_micro_epsilon
from fedcel.runs import Run, posterior_samples
from fedcel.settings import Settings


class ModelOffer(NamedTuple):
    """A model with its price and what its answers are worth."""

    model: ServedModel
    mechanism: Mechanism
    calibration: AnswerCalibration
    expected: ExpectedCard | None = None
    """Measured on test images; None where nobody did."""


def load_served(run: Run) -> ServedModel:
    """Build the model of a finished run: its samples, or its last model; see `build_served`."""
    samples = posterior_samples(run)
    served = build_served(run.settings, run.flat, samples, run.splits.shape)
    return replace(served, leak=read_leak(run.folder / "result.json"))


def read_leak(path: Path) -> LeakCard | None:
    """Return what a run measured of its messages, or None where it did not; RunError on junk."""
    if not path.exists():
        return None
    try:
        leak = MeasuredLeak.model_validate_json(path.read_text())
    except ValueError as error:
        raise RunError(
            f"{path} is damaged, delete it and evaluate the run again: {error}"
        ) from error
    if leak.bits_beyond_label is None:
        return None
    return LeakCard(
        bits=leak.bits_beyond_label,
        unseen=leak.population_beyond_label,
        unseen_bernstein=leak.population_beyond_label_bernstein,
        confidence=leak.population_confidence,
        images=leak.population_images,
    )


def build_served(
    settings: Settings,
    flat: FlatNet,
    samples: Sequence[Float[Tensor, " P"]],
    shape: tuple[int, ...],
) -> ServedModel:
    """Build the encoder that all posterior samples share, and all their heads.

    Args:
        settings: The run's settings; their group `privacy` says how answers are perturbed.
        flat: The net to work with; its parameters do not matter.
        samples: The parameters of each posterior sample, (P,).
        shape: Channels, height and width of an image.

    Raises:
        SettingsError: It would answer without a mechanism, or need several messages an image.
        RunError: The samples do not share one encoder.
    """
    if not settings.privacy.is_private:
        settings.privacy.build(2)  # says what to set
    if settings.chain.scope == "full":
        raise SettingsError(
            "chain.scope is 'full': its samples have encoders of their own, a device would send "
            "one image many times and leak more each time; serve a run with 'head'"
        )
    first_encoder = samples[0][: flat.device_size]
    if any(not torch.equal(sample[: flat.device_size], first_encoder) for sample in samples):
        raise RunError("the samples differ in the encoder, the run is damaged; train it anew")
    net = build_device_net(flat, samples, "head")
    modules: list[nn.Module] = [build_device_net(flat, [sample], "head").head for sample in samples]
    heads = {name: value.detach() for name, value in stack_module_state(modules)[0].items()}
    return ServedModel(
        net, heads, shape, settings.defence.adapt_net(settings.net), settings.privacy
    )


def build_model_card(offer: ModelOffer) -> ModelCard:
    """Return what a device has to know; the encoder is written out and hashed here."""
    served, mechanism = offer.model, offer.mechanism
    price = to_micro_epsilon(mechanism.epsilon) / MICRO
    return ModelCard(
        model=served.version,
        shape=list(served.shape),
        features=served.net.features,
        classes=served.classes,
        samples=served.samples,
        sigma=served.net.cut.sigma,
        dropout=served.net.cut.dropout,
        largest=MAX_VALUE,
        mechanism=mechanism.name,
        clip=getattr(mechanism, "clip", None),
        clip_kind=getattr(mechanism, "clip_kind", None),
        epsilon=mechanism.epsilon,
        delta=mechanism.delta,
        price=PriceCard(answer=price, uncertainty=price),
        encoder=EncoderCard(
            url="/v1/encoder", sha256=sha256(served.encoder).hexdigest(), bytes=len(served.encoder)
        ),
        leak=served.leak,
        expected=offer.expected,
    )
