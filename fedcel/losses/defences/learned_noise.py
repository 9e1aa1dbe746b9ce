"""Noise whose shape is learned: as much for each feature as the answers allow."""

from typing import ClassVar, Literal, final

from jaxtyping import Float
from torch import Tensor

from fedcel.errors import SettingsError
from fedcel.losses.defences.rival import LossRival
from fedcel.losses.protocol import Batch, MetricRange, MetricRanges, State, Term
from fedcel.nets import NOISE_LIMIT, NetSettings

NOISE_SCALE = MetricRange(1 / NOISE_LIMIT, NOISE_LIMIT)
"""Range of the geometric mean of learned standard deviations."""


def measure_scale(scale: Float[Tensor, "*k B D"]) -> Float[Tensor, "*k"]:
    """Return the geometric mean of standard deviations in units of sigma, without a gradient."""
    return scale.detach().log().mean((-2, -1)).exp()


class FeatureNoise(LossRival):
    """Defence by noise whose standard deviation is set for each feature, as a part of the net."""

    metric_ranges: ClassVar[MetricRanges] = {"noise-scale": NOISE_SCALE}
    learned_noise_shape: ClassVar[Literal["one", "feature", "image"]] = "feature"

    noise_shapes: ClassVar[str] = "'feature' or 'image'"
    """Values of `net.noise-shape` that it works with."""
    needs_noise: ClassVar[bool] = True

    def check_net(self, net: NetSettings) -> None:
        """Refuse noise of one standard deviation; see `Rival.check_net`."""
        super().check_net(net)
        if self.find_noise_shape(net) == "one":
            raise SettingsError(
                f"net.noise-shape is 'one' and defence.name {self.name!r}, which sets the noise of "
                f"each feature: set net.noise-shape to {self.noise_shapes}"
            )


@final
class LearnedNoise(FeatureNoise):
    """Rewards noise: the loss is -sum_d log s_d, s_d the noise's sd in units of the cut's sigma.

    Beside the cross-entropy, whose noise is learned through what it does to the answers, a feature
    gets the more noise the less the answers need it. In nats, like the bounds of `vib` and `ceb`,
    the part of them that only the noise decides. There is no state: the scale is a part of
    the net.

    References:
        Mireshghallah et al., Shredder, ASPLOS 2020, section 2.3.
    """

    name: Literal["learned-noise"] = "learned-noise"
    usual_strength: ClassVar[float] = 0.003

    def loss(self, state: State, batch: Batch, measure: bool) -> Term:
        """Compute -sum_d log s_d in nats, mean over images; see `LossTerm.loss`.

        Logged as `noise-scale`: the geometric mean of s.
        """
        scale = batch.known_scale
        loss = -scale.log().sum(-1).mean(-1)
        return Term(loss, {"noise-scale": measure_scale(scale)} if measure else {})
