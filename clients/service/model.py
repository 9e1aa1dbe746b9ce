"""Served model: one frozen encoder for the devices, all sampled heads behind it."""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple, final

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from clients.service_messages import ExpectedCard, LeakCard
from fedcel.attacks import MeasuredLeak
from fedcel.errors import RunError, SettingsError
from fedcel.files import encode_tensors
from fedcel.metrics import bald, predictive_entropy
from fedcel.nets import FlatNet, SplitNet
from fedcel.posterior import Prediction, build_device_net
from fedcel.privacy import AnswerCalibration, Mechanism
from fedcel.runs import Run, posterior_samples
from fedcel.settings import NetSettings, PrivacySettings, Settings

ENCODER_FORMAT = "1"


@final
@dataclass(frozen=True)
class ServedModel:
    """A model version, fixed while it is served; `heads` holds S samples of each parameter."""

    net: SplitNet
    heads: dict[str, Tensor]
    shape: tuple[int, ...]
    net_settings: NetSettings
    privacy: PrivacySettings
    leak: LeakCard | None = None
    """What the run measured of its messages."""
    run_heads: Callable[[Tensor], Tensor] | None = None
    """Computes the heads' log-probabilities (S, B, C) elsewhere than in torch; None: there."""

    @property
    def samples(self) -> int:
        """Return the number of sampled heads, S."""
        return len(next(iter(self.heads.values())))

    @cached_property
    def classes(self) -> int:
        """Return the number of values in an answer."""
        return self.net.answer(torch.zeros(1, self.net.features)).shape[1]

    @cached_property
    def version(self) -> str:
        """Return 32 hex digits of a digest of the cut and all tensors that decide an answer."""
        digest = sha256(f"{self.net.cut!r}".encode())
        encoder = {f"encoder.{name}": value for name, value in self.net.device_parameters().items()}
        for name, value in sorted({**encoder, **self.heads}.items()):
            digest.update(f"{name}{tuple(value.shape)}".encode())
            digest.update(value.detach().contiguous().numpy().tobytes())
        return digest.hexdigest()[:32]

    @cached_property
    def encoder(self) -> bytes:
        """Return the device's half as safetensors; the metadata says how to build its net."""
        metadata = {
            "format": ENCODER_FORMAT,
            "model": self.version,
            "net": json.dumps(self.net_settings.model_dump(by_alias=True, serialize_as_any=True)),
            "shape": json.dumps(self.shape),
            "classes": str(self.classes),
            "sigma": repr(self.net.cut.sigma),
            "dropout": repr(self.net.cut.dropout),
        }
        return encode_tensors(self.net.device_parameters(), metadata)

    def predict(self, messages: Float[Tensor, "B D"]) -> Prediction:
        """Answer smashed data with all heads, in one batched product."""
        if self.run_heads is not None:
            return Prediction(self.run_heads(messages))
        with torch.no_grad():
            return Prediction(self.compute_heads(messages))

    def compute_heads(self, messages: Float[Tensor, "B D"]) -> Float[Tensor, "S B C"]:
        """Compute each head's log-probabilities in torch."""
        if isinstance(self.net.head, nn.Linear):  # all of them are one product
            weight, bias = self.heads["weight"], self.heads["bias"]
            rows = nn.functional.linear(messages, weight.flatten(0, 1), bias.flatten())
            return rows.view(-1, *bias.shape).transpose(0, 1).log_softmax(-1)

        def answer(parameters: dict[str, Tensor]) -> Tensor:
            logits: Tensor = functional_call(self.net.head, parameters, (messages,))
            return logits

        return vmap(answer)(self.heads).log_softmax(-1)


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
    first_encoder = samples[0][: flat.cut]
    if any(not torch.equal(sample[: flat.cut], first_encoder) for sample in samples):
        raise RunError("the samples differ in the encoder, the run is damaged; train it anew")
    net = build_device_net(flat, samples, "head")
    modules: list[nn.Module] = [build_device_net(flat, [sample], "head").head for sample in samples]
    heads = {name: value.detach() for name, value in stack_module_state(modules)[0].items()}
    return ServedModel(
        net, heads, shape, settings.defence.adapt_net(settings.net), settings.privacy
    )


def uncertainty_scores(prediction: Prediction) -> Float[Tensor, "B 2"]:
    """Return predictive entropy and BALD of each message in nats, both within [0, log C]."""
    probabilities = prediction.samples.double()
    scores = torch.stack([predictive_entropy(probabilities), bald(probabilities)], 1)
    return scores.clamp(0.0, math.log(probabilities.shape[2]))


def uncertainty_sensitivity(classes: int) -> float:
    """Return the largest L1 distance of two rows of `uncertainty_scores`: 2 log C."""
    return 2 * math.log(classes)
