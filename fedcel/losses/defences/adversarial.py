"""An adversary that learns to decode smashed data while the encoder learns to be undecodable."""

from itertools import pairwise
from math import prod
from typing import ClassVar, Literal, final

import torch
from jaxtyping import Float
from torch import Tensor

from fedcel.errors import NetError
from fedcel.losses import adam
from fedcel.losses.defences.rival import LossRival
from fedcel.losses.protocol import SHARE, Batch, MetricRanges, State, Term

WIDTH = 256
"""Width of the decoder's hidden layers."""


@final
class Adversarial(LossRival):
    """Trains an encoder against a decoder that rebuilds images from what is sent.

    The loss is 1 - MSE of the images that the decoder makes of smashed data, in [0, 1]: the decoder
    descends the MSE, the encoder ascends it, by gradient reversal in place of alternating updates.
    The decoder has two hidden layers, fit for small images; that of ResSFL is convolutional.

    State: `theta` (P,), weight and bias of each layer, flat; Adam's moments `m`, `v` (P,) and step
    count `t`.

    References:
        ResSFL (Li et al., CVPR 2022); gradient reversal (Ganin et al., JMLR 2016).
    """

    name: Literal["adversarial"] = "adversarial"
    rate: ClassVar[float] = 0.001
    learner: ClassVar[str] = "adversary"
    metric_ranges: ClassVar[MetricRanges] = {"adversary-mse": SHARE}

    @property
    def widths(self) -> list[int]:
        """The number of values before and after each of the three layers."""
        return [self._cut.features, WIDTH, WIDTH, prod(self._cut.image)]

    @property
    def theta_size(self) -> int:
        """Number of weights of the decoder."""
        return sum((inputs + 1) * outputs for inputs, outputs in pairwise(self.widths))

    def draw_theta(self, generator: torch.Generator) -> Float[Tensor, " P"]:
        """Draw the decoder as linear layers are; see `LossRival.draw_theta`."""
        layers = [((inputs + 1) * outputs, inputs) for inputs, outputs in pairwise(self.widths)]
        return adam.draw_layers(layers, generator)

    def decode(
        self, theta: Float[Tensor, "*k P"], smashed: Float[Tensor, "*k B D"]
    ) -> Float[Tensor, "*k B N"]:
        """Rebuild images in [0, 1], flat (B, N), from smashed data (B, D).

        `theta` is weight and bias of each layer, flat. NetError where the smashed data have not the
        D values that the decoder was made for.
        """
        if smashed.shape[-1] != self._cut.features:
            raise NetError(
                f"the encoder sends {smashed.shape[-1]} values, the adversary decodes "
                f"{self._cut.features}; set net.features to what the encoder makes"
            )
        layers = list(pairwise(self.widths))
        # split, not slices: the backward pass of a slice fills a whole theta with zeros.
        parts = torch.split(theta, [n for i, o in layers for n in (i * o, o)], -1)
        x = smashed
        for k, (inputs, outputs) in enumerate(layers):
            weight = parts[2 * k].view(*theta.shape[:-1], outputs, inputs)
            x = x @ weight.mT + parts[2 * k + 1].unsqueeze(-2)
            x = x.sigmoid() if k == len(layers) - 1 else x.relu()
        return x

    def loss(self, state: State, batch: Batch, measure: bool) -> Term:
        """Compute 1 - MSE, in [0, 1] for images in [0, 1]; see `LossTerm.loss`.

        Logged as `adversary-mse`: the MSE.
        """
        images = self.decode(adam.reverse_gradient(state["theta"]), batch.smashed)
        mse = (images - batch.x.flatten(-3)).square().mean((-2, -1))
        return Term(1 - mse, {"adversary-mse": mse.detach()} if measure else {})
