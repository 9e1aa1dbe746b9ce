"""A network cut in two: encoder, noise at the cut, head."""

from collections.abc import Callable, Mapping
from itertools import chain
from typing import cast

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedcel.nets.cut import Cut, NoiseScale, NoiseShape
from fedcel.nets.encode_images import choose_batch_size
from fedcel.tensors import select_prefix, to_floats

IMAGES_AT_ONCE = 1024
"""Images that are encoded together at most where no gradient is wanted."""
Potential = Callable[[Tensor, Tensor], Tensor]
"""(logits, labels) -> mean negative log-likelihood in nats."""


class SplitNet(nn.Module):
    """A network cut in two: an encoder on the device, a head on the server, noise between.

    Attributes:
        encoder: Images (B, C, H, W) in [0, 1] to features (B, D).
        head: Smashed data (B, D) to logits (B, classes).
        cut: The noise between.
        noise_scale: How much of it each feature gets, features (B, D) to standard deviations in
            units of the cut's sigma (B, D); None: the same for all.
        features: D.
        positions: Of each channel, where z holds channel after channel; 1 behind a dense layer.
        potential: What is minimised: (logits, labels) to the mean negative log-likelihood of a
            batch in nats. The head's own method of that name, else the cross-entropy.
    """

    def __init__(
        self,
        encoder: nn.Module,
        head: nn.Module,
        cut: Cut,
        features: int,
        *,
        noise_scale: nn.Module | None = None,
        positions: int = 1,
    ) -> None:
        """Join two halves; the arguments are the attributes of the same names."""
        super().__init__()
        self.encoder = encoder
        self.noise_scale = noise_scale  # before the head: the vector begins with the device's half
        self.head = head
        self.cut = cut
        self.features = features
        self.positions = positions
        self.potential: Potential = getattr(head, "potential", cross_entropy)

    def encode(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D"]:
        """Compute the features z (B, D) of images in [0, 1], before any noise."""
        return cast(Tensor, self.encoder(images.clone()))  # one may work in place

    @torch.no_grad()
    def encode_all(self, images: Shaped[Tensor, "N C H W"]) -> Float[Tensor, "N D"]:
        """Compute the features of any number of images in batches, without a gradient.

        Images are numbers in [0, 1], or unsigned bytes.
        """
        at_once = choose_batch_size(images, IMAGES_AT_ONCE)
        first, *others = torch.split(images, at_once)
        z = self.encode(to_floats(first))
        if not others:
            return z
        # Filled part by part: millions of features in parts, and then joined, take thrice that.
        features = z.new_empty(len(images), *z.shape[1:])
        parts = chain([z], (self.encode(to_floats(part)) for part in others))
        for rows, part in zip(torch.split(features, at_once), parts, strict=True):
            rows.copy_(part)
        return features

    def add_noise(
        self, z: Float[Tensor, "B D"], generator: torch.Generator
    ) -> Float[Tensor, "B D"]:
        """Make smashed data from features, the noise of the cut drawn afresh by the generator."""
        return self.cut.disturb(z, generator, self.scale_noise(z))

    def scale_noise(self, z: Float[Tensor, "B D"]) -> Float[Tensor, "B D"] | None:
        """Compute the standard deviation of each feature's noise in units of the cut's sigma.

        None where all are 1.
        """
        return None if self.noise_scale is None else cast(Tensor, self.noise_scale(z))

    @property
    def noise_shape(self) -> NoiseShape:
        """Whether the noise has one standard deviation, or one a feature, or by image as well."""
        if self.noise_scale is None:
            return "one"
        layers = [part for part in self.noise_scale.modules() if isinstance(part, NoiseScale)]
        return "image" if any(layer.weight is not None for layer in layers) else "feature"

    def device_parameters(self) -> dict[str, nn.Parameter]:
        """Name the parameters of the device's half: the encoder's, then those of the noise."""
        scale = self.noise_scale
        of_scale = () if scale is None else scale.named_parameters(prefix="noise_scale")
        return dict([*self.encoder.named_parameters(), *of_scale])

    def load_device_parameters(self, tensors: Mapping[str, Tensor]) -> None:
        """Replace the parameters of the device's half by tensors, one for each name."""
        loaded: dict[nn.Parameter, nn.Parameter] = {}  # layers that share one go on sharing it
        of_encoder: dict[str, Tensor] = {}
        for name, old in self.encoder.named_parameters(remove_duplicate=False):
            if old not in loaded:
                loaded[old] = nn.Parameter(tensors[name])
            of_encoder[name] = loaded[old]
        self.encoder.load_state_dict(of_encoder, strict=False, assign=True)  # buffers stay
        if self.noise_scale is not None:
            self.noise_scale.load_state_dict(select_prefix(tensors, "noise_scale."), assign=True)

    def answer(self, smashed: Float[Tensor, "B D"]) -> Float[Tensor, "B C"]:
        """Classify smashed data as it was received: logits (B, K)."""
        return cast(Tensor, self.head(smashed))
