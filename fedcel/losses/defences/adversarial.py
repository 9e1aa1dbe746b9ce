"""An adversary that learns to decode messages while the encoder learns to be undecodable."""

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import prod
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from fedcel.errors import NetError, SettingsError
from fedcel.losses import adam
from fedcel.losses.cel.protocol import State, Term
from fedcel.losses.cel.state_names import check_holds


@final
@dataclass(frozen=True)
class Adversarial:
    """1 - MSE of the images that a decoder of the message makes, from D values, in [0, 1].

    After ResSFL (Li et al., CVPR 2022), with gradient reversal (Ganin et al., JMLR 2016) in place
    of alternating updates: the decoder descends the MSE, the encoder ascends it through the
    message, noise included. The decoder has two hidden layers, fit for small images; ResSFL's is
    convolutional. State: see `adam.State`; `step` moves theta by about `rate` whatever the loss's
    weight.
    """

    shape: tuple[int, ...]
    features: int
    width: int
    rate: float

    @cached_property
    def decoder(self) -> nn.Sequential:
        """Return the decoder's layers, without memory for parameters: theta holds them."""
        with torch.device("meta"):
            first, second, last = (nn.Linear(*sizes) for sizes in pairwise(self.widths))
        return nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), last, nn.Sigmoid())

    @property
    def widths(self) -> list[int]:
        """Return the number of values before and after each of the three layers."""
        return [self.features, self.width, self.width, prod(self.shape)]

    def refresh(self, state: State | None, generator: torch.Generator) -> State:
        """Return `state` with theta ready to learn; without one, theta drawn as layers are.

        SettingsError when the state is another loss's or of a decoder of another size.
        """
        if state is not None:
            check_holds(state, adam.NAMES, "an adversary")
            size = sum((inputs + 1) * outputs for inputs, outputs in pairwise(self.widths))
            if state["theta"].numel() != size:
                raise SettingsError(
                    f"a client's stored adversary has {state['theta'].numel()} weights, must have "
                    f"{size}: net.features, defence.width or the images changed; start from an "
                    "empty state"
                )
            return adam.resume(state)
        parts = [
            (2 * torch.rand((inputs + 1) * outputs, generator=generator) - 1) * inputs**-0.5
            for inputs, outputs in pairwise(self.widths)
        ]
        return adam.start(torch.cat(parts))

    def decode(
        self, theta: Float[Tensor, " P"], message: Float[Tensor, "B D"]
    ) -> Float[Tensor, "B N"]:
        """Return images in [0, 1], flat; `theta` is weight and bias of each layer, flat.

        NetError where the message has not the D values that the decoder was made for.
        """
        if message.shape[1] != self.features:
            raise NetError(
                f"the encoder sends {message.shape[1]} values, the adversary decodes "
                f"{self.features}; set net.features to what the encoder makes"
            )
        decoder = self.decoder
        parameters = dict(decoder.named_parameters())
        # split, not slices: the backward pass of a slice fills a whole theta with zeros.
        parts = torch.split(theta, [parameter.numel() for parameter in parameters.values()])
        shaped = {
            name: part.view(parameter.shape)
            for (name, parameter), part in zip(parameters.items(), parts, strict=True)
        }
        images: Tensor = functional_call(decoder, shaped, (message,))
        return images

    def loss(
        self,
        state: State,
        x: Float[Tensor, "B C H W"],
        z: Float[Tensor, "B D"],
        message: Float[Tensor, "B D"],
        measure: bool = True,
    ) -> Term:
        """Return 1 - MSE, in [0, 1] for images in [0, 1]; logged: `adversary-mse`."""
        theta = state["theta"]
        reversed_theta = 2 * theta.detach() - theta  # the same bits, the gradient reversed
        mse = functional.mse_loss(self.decode(reversed_theta, message), x.flatten(1))
        return Term(1 - mse, {"adversary-mse": mse.detach()} if measure else {})

    def step(self, state: State) -> State:
        """Return the state after a step of Adam; clears the gradient."""
        return adam.step(state, self.rate)
