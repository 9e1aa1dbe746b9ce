"""An adversary that learns to decode smashed data while the encoder learns to be undecodable."""

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import prod
from typing import ClassVar, final

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn import functional

from fedcel.errors import NetError
from fedcel.losses import adam
from fedcel.losses.cel.protocol import State, Term
from fedcel.losses.gradient_reversal import reverse_gradient


@final
@dataclass(frozen=True)
class Adversarial:
    """Trains an encoder against a decoder that rebuilds images from what is sent.

    The loss is 1 - MSE of the images that the decoder makes of smashed data, in [0, 1]: the decoder
    descends the MSE, the encoder ascends it, by gradient reversal in place of alternating updates.
    The decoder has two hidden layers, fit for small images; that of ResSFL is convolutional.

    State: `theta` (P,), weight and bias of each layer, flat; Adam's moments `m`, `v` (P,) and step
    count `t`.

    Args:
        shape: An image's shape, (C, H, W).
        features: D, the values of smashed data.
        width: Width of the decoder's hidden layers.
        rate: By about how much a step moves theta, whatever the loss's weight.

    References:
        ResSFL (Li et al., CVPR 2022); gradient reversal (Ganin et al., JMLR 2016).
    """

    takes_stacks: ClassVar[bool] = True
    """Whether `loss` takes the batches of several clients at once, (K, B, D)."""

    shape: tuple[int, ...]
    features: int
    width: int
    rate: float

    @cached_property
    def decoder(self) -> nn.Sequential:
        """The decoder's layers, without memory for parameters: theta holds them."""
        with torch.device("meta"):
            first, second, last = (nn.Linear(*sizes) for sizes in pairwise(self.widths))
        return nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), last, nn.Sigmoid())

    @property
    def widths(self) -> list[int]:
        """The number of values before and after each of the three layers."""
        return [self.features, self.width, self.width, prod(self.shape)]

    def refresh(self, state: State | None, generator: torch.Generator) -> State:
        """Make theta ready to learn, drawn as layers are at a client's first round.

        See `Defence.refresh`.

        Raises:
            SettingsError: The state is another loss's or of a decoder of another size.
        """
        layers = [((inputs + 1) * outputs, inputs) for inputs, outputs in pairwise(self.widths)]
        if state is None:
            return adam.draw_state(layers, generator)
        size, keys = sum(count for count, _ in layers), "net.features, defence.width or the images"
        return adam.resume_state(state, size, "adversary", keys)

    def decode(
        self, theta: Float[Tensor, " P"], smashed: Float[Tensor, "B D"]
    ) -> Float[Tensor, "B N"]:
        """Rebuild images from smashed data.

        Args:
            theta: Weight and bias of each layer, flat (P,).
            smashed: Smashed data (B, D).

        Returns:
            Images in [0, 1], flat (B, N).

        Raises:
            NetError: The smashed data have not the D values that the decoder was made for.
        """
        if smashed.shape[1] != self.features:
            raise NetError(
                f"the encoder sends {smashed.shape[1]} values, the adversary decodes "
                f"{self.features}; set net.features to what the encoder makes"
            )
        parameters = dict(self.decoder.named_parameters())
        # split, not slices: the backward pass of a slice fills a whole theta with zeros.
        parts = torch.split(theta, [parameter.numel() for parameter in parameters.values()])
        values = {
            name: part.view(parameter.shape)
            for (name, parameter), part in zip(parameters.items(), parts, strict=True)
        }
        images: Tensor = functional_call(self.decoder, values, (smashed,))
        return images

    def loss(
        self,
        state: State,
        x: Float[Tensor, "*k B C H W"],
        z: Float[Tensor, "*k B D"],
        smashed: Float[Tensor, "*k B D"],
        measure: bool = True,
    ) -> Term:
        """Compute 1 - MSE, in [0, 1] for images in [0, 1]; see `Defence.loss`.

        Logged as `adversary-mse`: the MSE.
        """
        theta = state["theta"]
        reversed_theta = reverse_gradient(theta)
        measure_error = self._measure_error if theta.dim() == 1 else vmap(self._measure_error)
        mse = measure_error(reversed_theta, smashed, x)
        return Term(1 - mse, {"adversary-mse": mse.detach()} if measure else {})

    def _measure_error(
        self,
        theta: Float[Tensor, " P"],
        smashed: Float[Tensor, "B D"],
        x: Float[Tensor, "B C H W"],
    ) -> Float[Tensor, ""]:
        """Return the mean squared error of the images that the decoder makes."""
        return functional.mse_loss(self.decode(theta, smashed), x.flatten(1))

    def step(self, state: State) -> State:
        """Move the decoder by a step of Adam, which clears the gradient; see `Defence.step`."""
        return adam.take_step(state, self.rate)
