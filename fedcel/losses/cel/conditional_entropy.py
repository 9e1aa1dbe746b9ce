"""Conditional entropy losses: statistics within each class, penalties of a spread, shared options.

Spreads are taken from differences to a centre, never as E|z|^2 - |E z|^2, which cancels. Centres
are constants to autograd: at its own weighted mean a spread is stationary in the centre, so the
gradient is exact without that path, and the graph is half as long.

Leading dimensions `*k`, where there are any, count clients whose batches of B examples are computed
at once, each by itself.
"""

import math
from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from pydantic import Field
from torch import Tensor

from fedcel.errors import DivergedError, SettingsError
from fedcel.losses.loss_options import LossOptions
from fedcel.losses.protocol import Batch, CutShape
from fedcel.losses.terms import GradientRule, WeightedTerm
from fedcel.nets import NetSettings, whiten_features
from fedcel.settings_table import Off, Positive
from fedcel.short_repr import show_shapes
from fedcel.tensors import check_labels

ClassShare = Literal["batch-share", "mean-present", "none"]
"""Rule for a class's share in the loss."""

Pool = Literal["flatten", "mean"]
"""Treatment of features of more than one dimension before a loss."""

Penalty = Callable[[Float[Tensor, "*k C"]], Float[Tensor, "*k C"]]
"""From the spreads of the classes, in units of z squared, to what each of them costs."""

LOG_OFFSET = 1e-6
"""Keeps the logarithm of a spread of 0 finite; in units of z squared."""

THRESHOLD_SHARE = 0.125
"""Default tau of `log_penalty`, as a share of sigma^2 D, the noise's own spread."""


MIN_FOLLOWED_ROUNDS = 3
"""Rounds at full strength below which no threshold can follow an accuracy."""


@show_shapes
class Members(NamedTuple):
    """Membership of examples in classes.

    Attributes:
        one_hot: (B, C), 1 where example i is of class c, else 0.
        counts: Column sums (C,), the number of members of each class.
    """

    one_hot: Float[Tensor, "*k B C"]
    counts: Float[Tensor, "*k C"]


def class_members(y: Int[Tensor, "*k B"], classes: int, like: Float[Tensor, "*k B D"]) -> Members:
    """Find the members of each class in a batch.

    Args:
        y: Labels (B,).
        classes: C.
        like: A tensor whose dtype and device the result has.

    Returns:
        The members; classes may have none.

    Raises:
        DataError: A label is not in 0..C-1; a negative one would count from the end.
    """
    check_labels(y, classes)
    one_hot = torch.eq(y.unsqueeze(-1), torch.arange(classes, device=like.device)).to(like.dtype)
    return Members(one_hot, one_hot.sum(-2))


def check_finite(z: Float[Tensor, "*k B D"], y: Int[Tensor, "*k B"]) -> None:
    """Raise DivergedError unless the length of each feature vector is a finite number."""
    wrong = ~torch.linalg.vector_norm(z, dim=-1).isfinite()
    if wrong.any():
        raise DivergedError(
            f"class {int(y[wrong][0])}: features of {int(wrong.sum())} of {y.numel()} examples "
            "are nan or inf, must be finite: the encoder ran away; lower local.rate or local.clip"
        )


def select_rows(
    rows: Float[Tensor, "*k C D"], index: Int[Tensor, "*k B"]
) -> Float[Tensor, "*k B D"]:
    """Return the row of each example: `rows[index]`, each client's from its own rows."""
    if index.dim() == 1:
        return rows.index_select(0, index)
    if len(index) == 1:
        return rows[0].index_select(0, index[0]).unsqueeze(0)
    size = rows.shape[-2]
    first = torch.arange(0, size * len(index), size, device=index.device)
    # index_select, not [...]: three times as fast on rows this short.
    flat = rows.flatten(0, -2).index_select(0, (index + first[:, None]).flatten())
    return flat.view(*index.shape, rows.shape[-1])


def weighted_sums(
    values: Float[Tensor, "*k B"], weights: Float[Tensor, "*k B C"]
) -> Float[Tensor, "*k C"]:
    """Return sum_i weights_ic values_i."""
    return (values.unsqueeze(-2) @ weights).squeeze(-2)


def weighted_means(
    z: Float[Tensor, "*k B D"], weights: Float[Tensor, "*k B C"]
) -> Float[Tensor, "*k C D"]:
    """Return sum_i weights_ic z_i as constants, in units of z."""
    with torch.no_grad():
        return weights.mT @ z


def weighted_spread(
    z: Float[Tensor, "*k B D"],
    centre: Float[Tensor, "*k B D"],
    weights: Float[Tensor, "*k B C"],
) -> Float[Tensor, "*k C"]:
    """Return v_c = sum_i weights_ic |z_i - centre_i|^2, in units of z squared."""
    spread: Tensor = _WeightedSpread.apply(z, centre, weights)
    return spread


class _WeightedSpread(torch.autograd.Function):
    """The spread, with its gradient: 2 weights_ic (z_i - centre_i) and |z_i - centre_i|^2.

    As one operation of autograd: on small batches the number of operations costs, not their size.
    """

    @staticmethod
    def forward(ctx: Any, z: Tensor, centre: Tensor, weights: Tensor) -> Tensor:
        gap = z - centre
        squared = gap.square().sum(-1)
        ctx.save_for_backward(gap, squared, weights)
        return weighted_sums(squared, weights)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, None, Tensor | None]:
        gap, squared, weights = ctx.saved_tensors
        pull = torch.matmul(weights, slope.unsqueeze(-1)).mul(gap).mul(2)
        by_weight = squared.unsqueeze(-1) * slope.unsqueeze(-2) if ctx.needs_input_grad[2] else None
        return pull, None, by_weight


def uniform_weights(members: Members) -> Float[Tensor, "*k B C"]:
    """Return weights 1/n_c for the members of each class c."""
    return members.one_hot / members.counts.clamp_min(1).unsqueeze(-2)


def plain_spread(
    z: Float[Tensor, "*k B D"], y: Int[Tensor, "*k B"], members: Members
) -> Float[Tensor, "*k C"]:
    """Return each class's mean |z - class mean|^2; 0 for absent classes and single members."""
    weights = uniform_weights(members)
    return weighted_spread(z, select_rows(weighted_means(z, weights), y), weights)


def drop_singletons(counts: Float[Tensor, "*k C"]) -> Float[Tensor, "*k C"]:
    """Return the counts with 0 in place of 1: a single member has no spread of its own."""
    return counts * (counts > 1)


def weighted_mean(
    values: Float[Tensor, "*k C"], weights: Float[Tensor, "*k C"]
) -> Float[Tensor, "*k"]:
    """Return the weighted mean as a constant, for the log; 0 when all weights are 0.

    Weights are 0 or at least 1: the lower limit of their sum changes an empty sum only.
    """
    total: Tensor = torch.linalg.vecdot(values.detach(), weights)
    return total / weights.sum(-1).clamp_min(1)


def select_measured(
    metrics: Mapping[str, Float[Tensor, "*k"]], is_measured: Bool[Tensor, "*k"]
) -> dict[str, Float[Tensor, "*k"]]:
    """Return metrics of K clients, NaN where there is nothing to measure."""
    return {name: value.where(is_measured, torch.nan) for name, value in metrics.items()}


def class_shares(counts: Float[Tensor, "*k C"], share: ClassShare) -> Float[Tensor, "*k C"]:
    """Compute beta, the factor of each class's penalty, from its members that carry a signal.

    `batch-share`: n_c / sum n; `mean-present`: 1 / classes present; `none`: 1 for each class that
    is present. 0 for a class with a count of 0: the first two sum to 1, or to 0 without a class.
    """
    part = counts if share == "batch-share" else (counts > 0).to(counts.dtype)
    return part if share == "none" else part / part.sum(-1, keepdim=True).clamp_min(1)


def linear_penalty(v: Float[Tensor, "*k C"]) -> Float[Tensor, "*k C"]:
    """Charge the spread itself: R(v) = v.

    Args:
        v: Spread of each class (C,), in units of z squared, 0 or more.

    Returns:
        R (C,), in units of z squared.
    """
    return v


def log_penalty(v: Float[Tensor, "*k C"], threshold: float) -> Float[Tensor, "*k C"]:
    """Charge the logarithm of the spread above a threshold, and nothing below it.

    R(v) = max(0, ln((v + eps) / (tau + eps))).

    Args:
        v: Spread of each class (C,), in units of z squared, 0 or more.
        threshold: tau, in units of z squared, above 0.

    Returns:
        R (C,), in nats.

    References:
        Xia et al., CVPR 2025: the hinge on the entropy surrogate log v.
    """
    return torch.log(v + LOG_OFFSET).sub(math.log(threshold + LOG_OFFSET)).relu()


def channel_penalty(v: Float[Tensor, "*k C"], features: int, sigma: float) -> Float[Tensor, "*k C"]:
    """Charge what a noisy channel could carry of the spread: R(v) = (D/2) ln(1 + v/(D sigma^2)).

    Args:
        v: Spread of each class (C,), in units of z squared, 0 or more.
        features: D.
        sigma: Standard deviation of the noise at the cut, in units of z, above 0.

    Returns:
        R (C,), in nats.

    References:
        Cover and Thomas, Elements of Information Theory, eq. 9.17: the capacity of D parallel
        Gaussian channels that share the signal power v evenly.
    """
    return features / 2 * torch.log1p(v / (features * sigma**2))


AnyCEL = TypeVar("AnyCEL", bound="CEL")


class CEL(LossOptions, table="cel"):
    """Conditional entropy loss: its options, and what it computes with them.

    It sees features in units of their noise, of each channel the mean where it pools.
    """

    kind: str = Field("none", description="Conditional entropy loss; none: no loss.")
    weight: float = Field(
        0.3,
        ge=0,
        allow_inf_nan=False,
        description="Weight lambda of the loss, multiplied by gamma.",
    )
    warm_up: int = Field(5, ge=0, description="Rounds before the loss starts.")
    schedule: Literal["ramp", "constant", "rate", "target"] = Field(
        "ramp",
        description="Gamma after warm-up: ramp, constant, falling with eta, or by `cel.target`.",
    )
    ramp: float = Field(
        0.6, ge=0, le=1, description="Fraction of the rounds at which gamma reaches 1."
    )
    target: Literal["none", "spread", "accuracy"] = Field(
        "none",
        description="Quantity that tau, or gamma with `cel.schedule=target`, steers to `cel.goal`.",
    )
    goal: Positive = Field(
        0.95,
        description="Goal of `cel.target`: a spread in the batches or a validation accuracy.",
    )
    pool: Pool = Field(
        "flatten",
        description="mean: the loss uses each channel's mean over positions; for convolutions.",
    )
    share: ClassShare = Field(
        "batch-share",
        description="Beta of a class, n_c of n images in the batch: n_c/n, 1/classes, or 1.",
    )
    clip: Positive | Literal["task"] | Off = Field(
        "none",
        description="Norm limit of the loss's gradient at an image's features; task: the task's.",
    )
    momentum: Annotated[float, Field(ge=0, lt=1)] | Off = Field(
        "none",
        description="Momentum of the loss's gradient, which then has its own backward pass; "
        "none: one pass for all.",
    )

    weight_key: ClassVar[str] = "cel.weight"

    def check_rules(self) -> None:
        """Refuse options that contradict each other or have no effect: SettingsError."""
        if self.schedule == "target" and self.target == "none":
            raise SettingsError(
                "cel.schedule is 'target', cel.target 'none': gamma follows a goal; set "
                "cel.target to 'accuracy' or 'spread' and cel.goal, or cel.schedule to 'ramp'"
            )
        if self.target != "none" and self.schedule != "target" and not self.has_threshold:
            raise SettingsError(
                f"cel.target is {self.target!r}, {self._name_penalty()}cel.kind {self.kind!r}: "
                "only the penalty 'log' has a threshold, 'mutual-information' uses no penalty; set "
                "cel.penalty to 'log' and another kind, cel.schedule to 'target', which moves the "
                "weight, or cel.target to 'none'"
            )
        if self.target == "accuracy" and self.goal >= 1:
            raise SettingsError(
                f"cel.goal is {self.goal:g}, must be a validation accuracy below 1; try 0.95"
            )

    def find_gamma(
        self, number: int, rounds: int, rate_share: float, limit: float | None = None
    ) -> float:
        """Compute gamma of a round, the share of `weight` that acts: 0 in warm-up.

        Then by `schedule`. `ramp`: linear to the fraction `ramp` of the rounds, then constant;
        `constant`: all of it at once; `rate`: in proportion to the step size, `rate_share` of the
        first one; `target`: as `ramp`, which the `limit` that the server sends holds back.
        """
        if self.schedule in ("ramp", "target"):
            ramp = ramp_weight(number, rounds, warm_up=self.warm_up, ramp=self.ramp)
        elif number <= self.warm_up:
            ramp = 0.0
        else:
            ramp = 1.0 if self.schedule == "constant" else rate_share
        return ramp if limit is None else min(limit, ramp)

    @property
    def has_threshold(self) -> bool:
        """Whether a spread below a threshold costs nothing."""
        return False

    def check_noise(self, sigma: float) -> None:
        """Raise SettingsError where an option is measured against the noise and sigma is 0."""

    def check_net(self, net: NetSettings) -> None:
        """Refuse means over positions of features that have none: SettingsError."""
        if self.pool != "flatten" and not net.has_positions:
            raise SettingsError(
                f"cel.pool is {self.pool!r}, net.name {net.name!r}, whose features have no "
                "positions; set net.name to 'vgg11' or a net of your own whose encoder has "
                "`positions`, or cel.pool to 'flatten'"
            )

    def check_rounds(self, rounds: int, burn_in: int, *, loss: str) -> None:
        """Refuse a schedule in which a loss never reaches its full weight.

        Args:
            rounds: Rounds of the run.
            burn_in: The last of burn-in.
            loss: Names the loss, this one or a defence's, as "cel.kind is 'cluster'".

        Raises:
            SettingsError: Burn-in ends before the loss is fully on, or on at all, or too soon
                after it for a threshold to follow an accuracy.
        """
        is_ramped = self.schedule in ("ramp", "target")
        ramped = round(self.ramp * rounds, 9)
        if max(self.warm_up, ramped if is_ramped else 0) > burn_in:
            raise SettingsError(
                f"{loss}, cel.warm-up {self.warm_up} rounds and cel.ramp {self.ramp:g} of "
                f"{rounds}, burn-in ends after {burn_in}: the loss must have its full "
                "weight by then; lower them, or raise chain.burn-in or rounds"
            )
        if self.warm_up >= burn_in:
            raise SettingsError(
                f"{loss}, cel.warm-up {self.warm_up}, burn-in ends after round {burn_in}: "
                "the loss would never act; lower cel.warm-up or raise rounds"
            )
        followed = burn_in - math.ceil(ramped)
        moves_threshold = self.schedule != "target" and self.target == "accuracy"
        if moves_threshold and followed < MIN_FOLLOWED_ROUNDS:
            raise SettingsError(
                f"cel.target is 'accuracy', {followed} rounds lie between cel.ramp's end and "
                f"burn-in, must be {MIN_FOLLOWED_ROUNDS} or more for a threshold to follow it; "
                "lower cel.ramp or raise rounds"
            )

    def bind(self: AnyCEL, cut: CutShape) -> AnyCEL:
        """Return the loss of the features at one cut, as it sees them; see `LossOptions.bind`."""
        self.check_noise(cut.sigma)
        return super().bind(self.pool_cut(cut))

    def make_term(self, cut: CutShape, run: object) -> WeightedTerm | None:
        """Return the loss at one cut with its weight and schedule; see `LossOptions.make_term`."""
        clip = None if self.clip == "none" else self.clip
        rule = GradientRule(clip, None if self.momentum == "none" else self.momentum)
        return WeightedTerm("cel", self.bind(cut), self.weight, rule, self.find_gamma)

    def see(self, batch: Batch) -> Batch:
        """Return features in units of their noise, of each channel the mean where it pools."""
        z = self.average_positions(whiten_features(batch.z, batch.noise_scale))
        return batch._replace(z=z, noise_scale=None)

    def average_positions(self, z: Float[Tensor, "*k D"]) -> Float[Tensor, "*k C"]:
        """Average each channel where it pools; z holds channel after channel."""
        if (positions := self._cut.positions) == 1:
            return z
        return z.reshape(*z.shape[:-1], -1, positions).mean(-1)

    def pool_cut(self, cut: CutShape) -> CutShape:
        """Return the features as the loss sees them: channel means, where it pools.

        Raises:
            SettingsError: The features have no positions to average over.
        """
        if self.pool == "flatten":
            return cut._replace(positions=1)
        if cut.positions == 1:
            raise SettingsError(
                f"cel.pool is {self.pool!r}, and the encoder has no `positions` above 1: say how "
                "many values of z each channel has, or set cel.pool to 'flatten'"
            )
        return cut._replace(features=cut.features // cut.positions)

    def _name_penalty(self) -> str:
        return ""


class NoCEL(CEL):
    """No conditional entropy loss."""

    kind: Literal["none"] = "none"

    idle_keys: ClassVar[frozenset[str]] = frozenset({"target", "goal"})

    def check_rules(self) -> None:
        """Refuse what follows a goal where there is no loss."""
        if self.schedule == "target":
            raise SettingsError(
                "cel.schedule is 'target', cel.kind 'none': gamma is of a conditional entropy "
                "loss, and there is none; set cel.kind to 'cluster' or another, or cel.schedule to "
                "'ramp'"
            )
        for key in sorted(self.idle_keys):
            if (value := getattr(self, key)) != type(self).model_fields[key].default:
                raise SettingsError(
                    f"cel.{key} is {value!r}, cel.kind 'none': a goal is of a conditional entropy "
                    f"loss, and there is none; remove cel.{key}, or set cel.kind to 'cluster' or "
                    "another"
                )

    def make_term(self, cut: CutShape, run: object) -> None:
        """Return no loss."""


class RefreshedCEL(CEL):
    """Conditional entropy loss with statistics of all the client's features."""

    refresh_every: int = Field(
        1,
        ge=0,
        alias="refresh",
        description="Local epochs between refreshes of the statistics; 0: once a round.",
    )

    def is_refresh_due(self, step: int, steps_per_epoch: int) -> bool:
        """Whether so many epochs have passed; see `LossTerm.is_refresh_due`."""
        period = self.refresh_every * steps_per_epoch
        return period > 0 and step % period == 0


class SpreadCEL(CEL):
    """Conditional entropy loss that charges the spread of each class."""

    penalty: Literal["linear", "log", "channel"] = Field(
        "channel", description="R(v) of spread v; channel: (D/2)log(1+v/(D sigma^2))."
    )
    threshold: Positive | Off = Field(
        "none", description="Tau of the log penalty; none: 0.125 sigma^2 D."
    )

    @property
    def has_threshold(self) -> bool:
        """Whether a spread below a threshold costs nothing."""
        return self.penalty == "log"

    def set_threshold(self: AnyCEL, threshold: float) -> AnyCEL:
        """Return the loss with another tau."""
        return self.model_copy(update={"threshold": threshold})

    def find_threshold(self, cut: CutShape) -> float:
        """Return tau of the log penalty as set, or tied to the noise on the features seen."""
        if self.threshold != "none":
            return self.threshold
        return THRESHOLD_SHARE * cut.sigma**2 * cut.features

    def check_noise(self, sigma: float) -> None:
        """Refuse a penalty that needs the noise where there is none; see `CEL.check_noise`."""
        if self.penalty == "channel" or (self.penalty == "log" and self.threshold == "none"):
            require_noise("penalty", self.penalty, sigma, instead="linear")

    def charge(self, v: Float[Tensor, "*k C"]) -> Float[Tensor, "*k C"]:
        """Compute R, what the spread v of each class costs."""
        if self.penalty == "linear":
            return linear_penalty(v)
        if self.penalty == "channel":
            return channel_penalty(v, self._cut.features, self._cut.sigma)
        return log_penalty(v, self.find_threshold(self._cut))

    def _name_penalty(self) -> str:
        return f"cel.penalty {self.penalty!r}, "


def require_noise(option: str, value: str, sigma: float, *, instead: str) -> None:
    """Raise SettingsError where the option `cel.OPTION` needs noise and sigma is 0."""
    if not sigma > 0:
        raise SettingsError(
            f"net.noise is {sigma}, must be above 0 for cel.{option} {value!r}, which is measured "
            f"against the noise; use 0.3, or cel.{option} {instead!r}"
        )


def ramp_weight(
    step: int | float,
    steps: int | float,
    *,
    warm_up: int | float = 5,
    ramp: int | float = 0.6,
    end: int | float = 1.0,
) -> float:
    """Compute the weight of a loss at a step: 0, then a linear ramp, then constant.

    At full weight from the start, a conditional entropy loss would pull the classes together
    before they separate. The unit of a step may be rounds, epochs or batches.

    Example:
        >>> weight = 1.0 * fedcel.ramp_weight(epoch, epochs, warm_up=5)
        >>> loss = cross_entropy(head(z + noise), y) + weight * cel(z, y)

    Args:
        step: The step, from 1 (or 0) on.
        steps: All steps of the training.
        warm_up: Steps in which the loss does not act.
        ramp: Fraction of the steps at which the weight is largest, in [0, 1].
        end: Its largest value.

    Returns:
        The factor, in [0, end].

    Raises:
        ValueError: `ramp` is not in [0, 1], or a number is negative.
    """
    if not 0 <= ramp <= 1:
        raise ValueError(f"ramp is {ramp}, must be in [0, 1]: a fraction of the steps")
    if min(step, steps, warm_up, end) < 0:
        raise ValueError(
            f"step is {step}, steps {steps}, warm_up {warm_up}, end {end}; all must be at least 0"
        )
    last = ramp * steps
    if step <= warm_up:
        return 0.0
    if step >= last:
        return float(end)
    return end * (step - warm_up) / (last - warm_up)
