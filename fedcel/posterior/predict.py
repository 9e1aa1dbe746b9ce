"""Predictions of a chain: averaged probabilities from one message, or one per encoder."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from fedcel.nets import FlatNet, NoiseScales, SplitNet, copy_module
from fedcel.short_repr import show_shapes


@show_shapes
class Prediction(NamedTuple):
    """Predictions of S posterior samples for N images; logs stay finite."""

    log_samples: Float[Tensor, "S N K"]
    """Each sample's log-probabilities."""

    @property
    def samples(self) -> Float[Tensor, "S N K"]:
        """Return each sample's probabilities."""
        return self.log_samples.exp()

    @property
    def probabilities(self) -> Float[Tensor, "N K"]:
        """Return the posterior predictive: the mean of the samples' probabilities."""
        return self.samples.mean(0)

    @property
    def logits(self) -> Float[Tensor, "N K"]:
        """Return the log of the averaged probabilities."""
        return self.log_samples.logsumexp(0) - math.log(len(self.log_samples))


def apply_heads(
    flat: FlatNet, samples: Sequence[Float[Tensor, " P"]], messages: Float[Tensor, "N D"]
) -> Float[Tensor, "S N K"]:
    """Compute every sampled head's log-probabilities for the same messages.

    One head after the other on all messages: stacked by vmap, heads of this size take twice as
    long.

    Args:
        flat: The net to work with; its head is overwritten, its encoder is not used.
        samples: Parameters of each sample, (P,).
        messages: Smashed data as they arrived, (N, D).

    Returns:
        Log-probabilities, (S, N, K).
    """
    answers = []
    with torch.no_grad():
        head = copy_head(flat.net.head, messages)
        for vector in samples:
            flat.vector[flat.device_size :].copy_(vector[flat.device_size :])
            head.load_state_dict(flat.net.head.state_dict())
            answers.append(head(messages).log_softmax(1))
    return torch.stack(answers)


def copy_head(head: nn.Module, messages: Float[Tensor, "N D"]) -> nn.Module:
    """Copy a head, channels last where it takes that: a quarter of the time for convolutions.

    A layer that uses `view` may not.
    """
    copy = copy_module(head).to(memory_format=torch.channels_last)
    try:
        copy(messages[:1])
    except RuntimeError:
        return copy_module(head)
    return copy


def predict(
    flat: FlatNet,
    samples: Sequence[Float[Tensor, " P"]],
    x: Shaped[Tensor, "N C H W"],
    generator: torch.Generator,
    *,
    scope: str = "head",
    draws: int = 1,
) -> Prediction:
    """Predict with every posterior sample.

    Args:
        flat: The net to work with; its parameters do not matter.
        samples: Parameters of each sample, (P,).
        x: Images (N, C, H, W), numbers in [0, 1] or unsigned bytes.
        generator: Draws the noise at the cut.
        scope: `head`: the encoder is the same in all samples, one noisy message an image goes to
            all heads. `full`: each sampled encoder sends its own noisy message.
        draws: Messages of each image, which is encoded once; predictions are of one message of all
            images, then of the next.

    Returns:
        The samples' probabilities, and their mean.

    Raises:
        ValueError: There is no sample.
    """
    if not samples:
        raise ValueError("no posterior samples; run past burn-in, or pass the last model")
    if scope == "head":
        messages = _encode_noisily(flat, samples[0], x, generator, draws=draws)
        return Prediction(apply_heads(flat, samples, messages))
    parts = [
        apply_heads(flat, [vector], _encode_noisily(flat, vector, x, generator, draws=draws))
        for vector in samples
    ]
    return Prediction(torch.cat(parts))


def _encode_noisily(
    flat: FlatNet,
    vector: Float[Tensor, " P"],
    x: Shaped[Tensor, "N C H W"],
    generator: torch.Generator,
    *,
    draws: int,
) -> Float[Tensor, "M D"]:
    flat.load(vector)
    with torch.no_grad():
        return flat.net.add_noise(flat.net.encode_all(x).repeat(draws, 1), generator)


class SampledHeads(nn.Module):
    """Heads of several posterior samples, whose probabilities are averaged.

    Args:
        heads: One of each sample.
        has_own_messages: Whether each head gets a part of the smashed data, as in scope `full`;
            else all get the same.
    """

    def __init__(self, heads: Sequence[nn.Module], *, has_own_messages: bool) -> None:
        super().__init__()
        self.heads = nn.ModuleList(heads)
        self.has_own_messages = has_own_messages

    def forward(self, smashed: Float[Tensor, "N D"]) -> Float[Tensor, "N K"]:
        """Return the log of the averaged probabilities, (N, K)."""
        count = len(self.heads)
        parts = smashed.chunk(count, 1) if self.has_own_messages else [smashed] * count
        answers = [head(part).log_softmax(1) for head, part in zip(self.heads, parts, strict=True)]
        return torch.stack(answers).logsumexp(0) - math.log(count)


def copy_heads(flat: FlatNet, samples: Sequence[Float[Tensor, " P"]], scope: str) -> SampledHeads:
    """Copy the heads that answer what `build_device_net` sends.

    Args:
        flat: The net to work with; its parameters do not matter.
        samples: Parameters of each posterior sample, (P,).
        scope: `head`: all heads get one message; `full`: each gets that of its own encoder.

    Returns:
        A module of its own memory, from smashed data to logits.
    """
    heads = []
    for vector in samples:
        flat.load(vector)
        heads.append(copy_module(flat.net.head))
    return SampledHeads(heads, has_own_messages=scope == "full")


class Encoders(nn.Module):
    """Several encoders side by side: all that a device sends for one image in scope `full`."""

    def __init__(self, encoders: Sequence[nn.Module]) -> None:
        super().__init__()
        self.encoders = nn.ModuleList(encoders)

    def forward(self, x: Float[Tensor, "N C H W"]) -> Float[Tensor, "N D"]:
        """Return the features of all encoders in a row, (N, S*D)."""
        return torch.cat([encoder(x) for encoder in self.encoders], 1)


def build_device_net(flat: FlatNet, samples: Sequence[Float[Tensor, " P"]], scope: str) -> SplitNet:
    """Build the net whose smashed data are everything that leaves a device for one image.

    Args:
        flat: The net to work with; its parameters do not matter.
        samples: Parameters of each posterior sample, (P,).
        scope: `head`: the device has the first sample's encoder; `full`: those of all samples.

    Returns:
        A net of its own memory; in scope `full` its smashed data are those of all encoders in a
        row, (N, S*D).
    """
    nets = []
    for vector in samples if scope == "full" else samples[:1]:
        flat.load(vector)
        nets.append(copy_module(flat.net))
    if len(nets) == 1:
        return nets[0]
    scales = [scale for net in nets if (scale := net.noise_scale) is not None]
    return SplitNet(
        Encoders([net.encoder for net in nets]),
        nets[-1].head,
        flat.net.cut,
        flat.net.features * len(nets),
        noise_scale=NoiseScales(scales) if scales else None,
    )
