"""Noise of each feature's own size: as the answers allow, or as a wanted leak asks."""

from math import expm1, log
from typing import ClassVar, Literal, final

from jaxtyping import Float, Int
from torch import Tensor

from fedcel.losses.cel.conditional_entropy import (
    class_members,
    select_rows,
    uniform_weights,
    weighted_means,
)
from fedcel.losses.defences.rival import LossRival
from fedcel.losses.protocol import Batch, MetricRange, MetricRanges, State, Term
from fedcel.nets import NOISE_LIMIT, NoiseShape

NOISE_SCALE = MetricRange(1 / NOISE_LIMIT, NOISE_LIMIT)
"""Range of the geometric mean of learned standard deviations."""


def measure_scale(scale: Float[Tensor, "*k B D"]) -> Float[Tensor, "*k"]:
    """Return the geometric mean of standard deviations in units of sigma, without a gradient."""
    return scale.detach().log().mean((-2, -1)).exp()


class FeatureNoise(LossRival):
    """Defence by noise whose standard deviation is set for each feature, as a part of the net."""

    metric_ranges: ClassVar[MetricRanges] = {"noise-scale": NOISE_SCALE}
    noise_shape: ClassVar[NoiseShape] = "feature"
    needs_noise: ClassVar[bool] = True


@final
class LearnedNoise(FeatureNoise):
    """Rewards noise: the loss is -sum_d log s_d, s_d the noise's sd in units of the cut's sigma.

    Beside the cross-entropy, whose noise is learned through what it does to the answers, a feature
    gets the more noise the less the answers need it. In nats, like the bounds of `vib` and `ceb`,
    the part of them that only the noise decides. With strength 0 the answers alone set the noise.
    There is no state: the scale is a part of the net.

    References:
        Mireshghallah et al., Shredder, ASPLOS 2020, section 2.3.
    """

    name: Literal["learned-noise"] = "learned-noise"
    usual_strength: ClassVar[float] = 0.003

    def check_rules(self) -> None:
        """Allow strength 0, which only learns the noise; see `Rival.check_rules`."""

    def loss(self, state: State, batch: Batch, measure: bool) -> Term:
        """Compute -sum_d log s_d in nats, mean over images; see `LossTerm.loss`.

        Logged as `noise-scale`: the geometric mean of s.
        """
        scale = batch.known_scale
        loss = -scale.log().sum(-1).mean(-1)
        return Term(loss, {"noise-scale": measure_scale(scale)} if measure else {})


def signal_to_noise(bits: float, features: int) -> float:
    """Compute the ratio of variances within classes to those of the noise that tells so many bits.

    Of D independent features, D/2 log2(1 + ratio) = bits. Where features depend on each other a
    message tells less: log det(I + M) <= sum_d log(1 + M_dd), Hadamard's inequality.

    References:
        Cover and Thomas, Elements of Information Theory, 2006, section 9.4: parallel Gaussian
        channels.
    """
    return expm1(2 * bits * log(2) / features)


def variance_within_classes(
    z: Float[Tensor, "*k B D"], y: Int[Tensor, "*k B"], classes: int
) -> Float[Tensor, "*k D"]:
    """Estimate the variance of each feature within classes, pooled; 0 where no class has two."""
    members = class_members(y, classes, z)
    centres = weighted_means(z, uniform_weights(members))
    freedom = (members.counts - 1).clamp_min(0).sum(-1)
    squares = (z - select_rows(centres, y)).detach().square().sum(-2)
    return squares / freedom.clamp_min(1).unsqueeze(-1)


@final
class FisherNoise(FeatureNoise):
    """Noise that lets a message tell at most so many bits beyond the label, in linear terms.

    `strength` is the bits B. A feature's noise has the variance g_d / (2^(2B/D) - 1), g_d the
    variance of the feature within classes: (J C J^T)_dd for an encoder of Jacobian J and images of
    covariance C. Then the Fisher information of the message, in units of C, is the same in each
    feature, and 1/2 log2 det(I + S^-1 J C J^T) <= B. The standard deviations are a part of the net:
    each client's steps pull them to those of its batches, and the server averages their logarithms.
    So training, measures, attacks and service have one noise.

    The loss is 1/2 sum_d (log s_d - log s*_d)^2, s* what the variances ask for, in units of sigma.
    There is no state.

    References:
        Deng et al., Quantifying Privacy Leakage in Split Inference via Fisher-Approximated Shannon
        Information Analysis, 2025 (FSInfoGuard): noise of a wanted leak in closed form.
    """

    name: Literal["fisher-noise"] = "fisher-noise"
    usual_strength: ClassVar[float] = 2.0

    @property
    def weight(self) -> float:
        """Share of the way to the wanted noise that a step of size 1 goes."""
        return 0.3

    def loss(self, state: State, batch: Batch, measure: bool) -> Term:
        """Compute the loss in nats squared, mean over images; see `LossTerm.loss`.

        Logged as `noise-scale`: the geometric mean of s.
        """
        scale = batch.known_scale
        ratio = signal_to_noise(self.used_strength, self._cut.features) * self._cut.sigma**2
        variance = variance_within_classes(batch.z, batch.y, self._cut.classes)
        limit = log(NOISE_LIMIT)
        target = (variance / ratio).log().div(2).clamp(-limit, limit)  # of log 0, too
        loss = (scale.log() - target.unsqueeze(-2)).square().sum(-1).mean(-1) / 2
        return Term(loss, {"noise-scale": measure_scale(scale)} if measure else {})
