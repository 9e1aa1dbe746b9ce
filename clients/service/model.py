"""What is served: one frozen encoder for the devices, all sampled heads behind it."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import final

import torch
from jaxtyping import Float
from safetensors.torch import save
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from fedcel.errors import RunError, SettingsError
from fedcel.losses import defences
from fedcel.metrics import bald, predictive_entropy
from fedcel.nets import FlatNet, SplitNet
from fedcel.posterior import Prediction, build_device_net
from fedcel.runs import Run, posterior_samples
from fedcel.settings import NetSettings, PrivacySettings, Settings, check_private

ENCODER_FORMAT = "1"


@final
@dataclass(frozen=True)
class ServedModel:
    """A model version, fixed while it is served; `heads` holds S samples of each parameter."""

    net: SplitNet
    heads: dict[str, Tensor]
    samples: int
    shape: tuple[int, ...]
    classes: int
    net_settings: NetSettings
    privacy: PrivacySettings
    version: str
    encoder: bytes

    def logits(self, messages: Float[Tensor, "B D"]) -> Prediction:
        """Return all heads' log-probabilities of the same messages, in one batched product."""

        def one(parameters: dict[str, Tensor]) -> Tensor:
            found: Tensor = functional_call(self.net.head, parameters, (messages,))
            return found

        with torch.no_grad():
            return Prediction(vmap(one)(self.heads).log_softmax(-1))


def load_served(run: Run) -> ServedModel:
    """Return what a finished run serves: its posterior samples, or its last model alone."""
    return build_served(run.settings, run.flat, posterior_samples(run), run.splits.shape)


def build_served(
    s: Settings, flat: FlatNet, vectors: Sequence[Float[Tensor, " P"]], shape: tuple[int, ...]
) -> ServedModel:
    """Return what answers for these samples, to images of `shape`.

    SettingsError where it answers without a mechanism or would need several messages an image,
    RunError where the samples do not share one encoder.
    """
    check_private(s.privacy)
    if s.chain.scope == "full":
        raise SettingsError(
            "chain.scope is 'full': its samples have encoders of their own, a device would send "
            "one image many times and leak more each time; serve a run with 'head'"
        )
    encoders = [vector[: flat.cut] for vector in vectors]
    if any(not torch.equal(other, encoders[0]) for other in encoders):
        raise RunError("the samples differ in the encoder, the run is damaged; train it anew")
    net, own = build_device_net(flat, vectors, "head"), defences.defended_net_settings(s)
    heads: list[nn.Module] = [build_device_net(flat, [vector], "head").head for vector in vectors]
    stacked = {name: value.detach() for name, value in stack_module_state(heads)[0].items()}
    classes = net.answer(torch.zeros(1, net.features)).shape[1]
    version = hash_version(net, stacked)
    encoder = serialise_encoder(net, own, shape, classes, version)
    return ServedModel(net, stacked, len(vectors), shape, classes, own, s.privacy, version, encoder)


def hash_version(net: SplitNet, heads: dict[str, Tensor]) -> str:
    """Return the SHA-256 of all tensors that decide an answer, and of the cut; 32 hex digits."""
    found = sha256(f"{net.cut!r}".encode())
    encoder = {f"encoder.{name}": value for name, value in net.encoder.named_parameters()}
    for name, value in sorted({**encoder, **heads}.items()):
        found.update(f"{name}{tuple(value.shape)}".encode())
        found.update(value.detach().contiguous().numpy().tobytes())
    return found.hexdigest()[:32]


def serialise_encoder(
    net: SplitNet, own: NetSettings, shape: tuple[int, ...], classes: int, version: str
) -> bytes:
    """Return the encoder as safetensors; the metadata says how to build its net."""
    tensors = {n: p.detach().contiguous().clone() for n, p in net.encoder.named_parameters()}
    about = {
        "format": ENCODER_FORMAT,
        "model": version,
        "net": json.dumps(own.model_dump(by_alias=True)),
        "shape": json.dumps(shape),
        "classes": str(classes),
        "sigma": repr(net.cut.sigma),
        "dropout": repr(net.cut.dropout),
    }
    return save(tensors, about)


def uncertainty_scores(found: Prediction) -> Float[Tensor, "B 2"]:
    """Return predictive entropy and BALD of each message in nats, both within [0, log C]."""
    wide = found.samples.double()
    both = torch.stack([predictive_entropy(wide), bald(wide)], 1)
    return both.clamp(0.0, math.log(wide.shape[2]))


def uncertainty_sensitivity(classes: int) -> float:
    """Return the largest L1 distance of two rows of `uncertainty_scores`: 2 log C."""
    return 2 * math.log(classes)
