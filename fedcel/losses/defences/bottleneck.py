"""Information bottlenecks: the message's law is held near one Gaussian, or one a class."""

from dataclasses import dataclass
from math import log
from typing import ClassVar, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fedcel.errors import NetError
from fedcel.losses import adam
from fedcel.losses.defences.learned_noise import measure_scale
from fedcel.losses.protocol import State, Term


def gaussian_divergence(
    mean: Float[Tensor, "*k D"],
    deviation: Float[Tensor, "*k D"],
    other_mean: Float[Tensor, "*k D"],
    other_deviation: Float[Tensor, "*k D"],
) -> Float[Tensor, "*k"]:
    """Compute KL(N(mean, deviation^2) || N(other_mean, other_deviation^2)), features independent.

    Args:
        mean: Means of D features.
        deviation: Their standard deviations, above 0.
        other_mean: Means of the reference.
        other_deviation: Its standard deviations, above 0.

    Returns:
        sum_d [(s^2 + (m - b)^2) / (2 r^2) - 1/2 + log(r / s)], in nats.

    References:
        Cover and Thomas, Elements of Information Theory, 2006, section 8.5.
    """
    ratio = (deviation / other_deviation).square()
    gap = ((mean - other_mean) / other_deviation).square()
    nats: Tensor = ((ratio + gap - 1 - ratio.log()) / 2).sum(-1)
    return nats


@final
@dataclass(frozen=True)
class InformationBottleneck:
    """Bounds what a message tells from above, and makes the bound small.

    The loss is E KL(N(z, (sigma s)^2) || r) >= I(image; message) for any Gaussian r, or, with one r
    for each class, >= I(image; message | label). Each client learns its own r beside the encoder:
    it stays with the client, and the bound is of its images.

    State: `theta` (P,), means and log standard deviations of the Gaussians, flat; Adam's moments
    `m`, `v` (P,) and step count `t`. None where r is fixed.

    Args:
        features: D.
        groups: Number of Gaussians: 1, or one a class.
        sigma: Standard deviation of the noise at the cut, above 0.
        centre: Mean of each feature under r, where r is fixed or at its start.
        deviation: Standard deviation of each feature under r, where r is fixed or at its start.
        rate: By about how much a step moves theta, whatever the loss's weight; 0: r is fixed.

    References:
        One r: Alemi et al., ICLR 2017, eq. 14 to 17 (VIB). One a class: Fischer, Entropy 2020,
        section 3 (CEB), r the backward encoder b(z|y).
    """

    takes_stacks: ClassVar[bool] = True
    """Whether `law_loss` takes the batches of several clients at once, (K, B, D)."""

    features: int
    groups: int
    sigma: float
    centre: float
    deviation: float
    rate: float

    def refresh(self, state: State | None, generator: torch.Generator) -> State:
        """Make theta ready to learn; nothing is drawn. See `Defence.refresh`.

        Raises:
            SettingsError: The state is another loss's, or of other features or classes.
        """
        if not self.rate:
            return {}
        start = self._initial_theta()
        if state is None:
            return {
                "theta": start.requires_grad_(),
                "m": torch.zeros_like(start),
                "v": torch.zeros_like(start),
                "t": torch.zeros((), dtype=torch.int64),
            }
        return adam.resume_state(state, start.numel(), "information bottleneck", "net.features")

    def _initial_theta(self) -> Float[Tensor, " P"]:
        values = torch.tensor([self.centre, log(self.deviation)])
        return values.repeat_interleave(self.groups * self.features)

    def law_loss(
        self,
        state: State,
        z: Float[Tensor, "*k B D"],
        scale: Float[Tensor, "*k B D"],
        *,
        y: Int[Tensor, "*k B"],
        measure: bool = True,
    ) -> Term:
        """Compute the mean over images of KL(N(z, (sigma s)^2) || r_y) in nats.

        See `LawDefence.law_loss`. Logged as `information-bound`, and `noise-scale`: the geometric
        mean of s.

        Raises:
            NetError: The encoder makes another number of features.
        """
        if z.shape[-1] != self.features:
            raise NetError(
                f"the encoder makes {z.shape[-1]} features, the bottleneck is of {self.features}; "
                "set net.features to what the encoder makes"
            )
        theta = state["theta"] if self.rate else self._initial_theta().to(z)
        means, logs = theta.view(*theta.shape[:-1], 2, self.groups, -1).unbind(-3)
        rows = (torch.zeros_like(y) if self.groups == 1 else y)[..., None].expand_as(z)
        if not self.rate:  # the same for all clients
            means, logs = (part.expand(*z.shape[:-2], -1, -1) for part in (means, logs))
        nats = gaussian_divergence(
            z, self.sigma * scale, means.gather(-2, rows), logs.gather(-2, rows).exp()
        )
        bound = nats.mean(-1)
        metrics = {"information-bound": bound.detach(), "noise-scale": measure_scale(scale)}
        return Term(bound, metrics if measure else {})

    def step(self, state: State) -> State:
        """Move the Gaussians by a step of Adam, which clears the gradient; see `Defence.step`."""
        return adam.take_step(state, self.rate) if self.rate else state
