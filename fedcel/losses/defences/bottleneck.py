"""Information bottlenecks: the message's law is held near one Gaussian, or one a class."""

from math import inf, log, sqrt
from typing import ClassVar, Literal, final

import torch
from jaxtyping import Float
from torch import Tensor

from fedcel.errors import NetError
from fedcel.losses.defences.feature_noise import NOISE_SCALE, measure_scale
from fedcel.losses.defences.rival import LossRival
from fedcel.losses.protocol import Batch, MetricRange, MetricRanges, State, Term
from fedcel.nets import NoiseShape


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


class InformationBottleneck(LossRival):
    """Bounds what a message tells from above, and makes the bound small.

    The loss is E KL(N(z, (sigma s)^2) || r) >= I(image; message) for any Gaussian r, or, with one r
    for each class, >= I(image; message | label). Each client learns its own r beside the encoder:
    it stays with the client, and the bound is of its images.

    State: `theta` (P,), means and log standard deviations of the Gaussians, flat; Adam's moments
    `m`, `v` (P,) and step count `t`.

    References:
        One r: Alemi et al., ICLR 2017, eq. 14 to 17 (VIB). One a class: Fischer, Entropy 2020,
        section 3 (CEB), r the backward encoder b(z|y).
    """

    noise_shape: ClassVar[NoiseShape] = "image"
    needs_noise: ClassVar[bool] = True
    rate: ClassVar[float] = 0.01
    learner: ClassVar[str] = "information bottleneck"
    metric_ranges: ClassVar[MetricRanges] = {
        "noise-scale": NOISE_SCALE,
        "information-bound": lambda scale: MetricRange(0.0, inf, float(scale.features)),
    }

    @property
    def groups(self) -> int:
        """Number of Gaussians: 1, or one a class."""
        return 1

    @property
    def theta_size(self) -> int:
        """Number of means and log standard deviations."""
        return 2 * self.groups * self._cut.features

    def draw_theta(self, generator: torch.Generator) -> Float[Tensor, " P"]:
        """Take features to be anywhere in [0, 1]; nothing is drawn."""
        values = torch.tensor([0.5, log(sqrt(self._cut.sigma**2 + 1 / 12))])
        return values.repeat_interleave(self.groups * self._cut.features)

    def loss(self, state: State, batch: Batch, measure: bool) -> Term:
        """Compute the mean over images of KL(N(z, (sigma s)^2) || r_y) in nats.

        See `LossTerm.loss`. Logged as `information-bound`, and `noise-scale`: the geometric
        mean of s.

        Raises:
            NetError: The encoder makes another number of features.
        """
        z, y, scale = batch.z, batch.y, batch.known_scale
        if z.shape[-1] != self._cut.features:
            raise NetError(
                f"the encoder makes {z.shape[-1]} features, the bottleneck is of "
                f"{self._cut.features}; set net.features to what the encoder makes"
            )
        theta = state["theta"]
        means, logs = theta.view(*theta.shape[:-1], 2, self.groups, -1).unbind(-3)
        rows = (torch.zeros_like(y) if self.groups == 1 else y)[..., None].expand_as(z)
        nats = gaussian_divergence(
            z, self._cut.sigma * scale, means.gather(-2, rows), logs.gather(-2, rows).exp()
        )
        bound = nats.mean(-1)
        metrics = {"information-bound": bound.detach(), "noise-scale": measure_scale(scale)}
        return Term(bound, metrics if measure else {})


@final
class VIB(InformationBottleneck):
    """Variational information bottleneck: one Gaussian for all images."""

    name: Literal["vib"] = "vib"
    usual_strength: ClassVar[float] = 0.03


@final
class CEB(InformationBottleneck):
    """Conditional entropy bottleneck: one Gaussian a class."""

    name: Literal["ceb"] = "ceb"
    usual_strength: ClassVar[float] = 0.3

    @property
    def groups(self) -> int:
        """Number of Gaussians: one a class."""
        return self._cut.classes
