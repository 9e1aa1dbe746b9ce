"""Conditional entropy losses: the options that all of them share."""

from collections.abc import Iterator, Sequence
from typing import Annotated, ClassVar, Literal

import torch
from jaxtyping import Float, Int
from pydantic import Field, PrivateAttr
from torch import Tensor

from fedcel.errors import SettingsError
from fedcel.losses.cel.class_spread import ClassShare
from fedcel.losses.protocol import (
    CutShape,
    FeatureReader,
    MetricRanges,
    StackedFeatures,
    State,
    Term,
    pool_positions,
)
from fedcel.losses.terms import Batch, LossTerm, Streams
from fedcel.options import Kind, Off, Positive
from fedcel.posterior import Clock, StepSize

Pool = Literal["flatten", "mean"]
"""Treatment of features of more than one dimension before a loss."""


class CEL(Kind, LossTerm, table="cel"):
    """Conditional entropy loss: its options, and what it computes with them.

    `bind` returns the loss of the features of one net.
    """

    kind: str = Field("none", description="Which conditional entropy loss is added, if any.")
    weight: float = Field(
        0.3, ge=0, allow_inf_nan=False, description="Lambda, multiplied by gamma."
    )
    warm_up: int = Field(5, ge=0, description="Rounds before the loss is switched on.")
    schedule: Literal["ramp", "constant", "rate", "target"] = Field(
        "ramp",
        description="Gamma after warm-up: a ramp, constant, falling with eta, or by `cel.target`.",
    )
    ramp: float = Field(
        0.6, ge=0, le=1, description="Fraction of the rounds at which gamma is largest."
    )
    target: Literal["none", "spread", "accuracy"] = Field(
        "none",
        description="What tau, or gamma by `cel.schedule`, follows to reach `cel.goal`; or none.",
    )
    goal: Positive = Field(
        0.95,
        description="Spread in the batches, or validation accuracy, that `cel.target` steers to.",
    )
    pool: Pool = Field(
        "flatten",
        description="mean: a loss sees each channel's mean over positions; convolutional cuts.",
    )
    share: ClassShare = Field(
        "batch-share", description="Beta, a class's share in the loss: n_c/B, 1/present, or 1."
    )
    clip: Positive | Literal["task"] | Off = Field(
        "none",
        description="Largest norm of the loss's gradient at an image's features; task: the task's.",
    )
    momentum: Annotated[float, Field(ge=0, lt=1)] | Off = Field(
        "none",
        description="Of the loss's gradient, from a backward pass of its own into the encoder; "
        "none: one pass for all.",
    )

    metric_ranges: ClassVar[MetricRanges] = {}
    """Ranges of what `evaluate` measures; a user's own loss declares none."""

    _cut: CutShape = PrivateAttr(CutShape(0, 0))

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

    def find_gamma(self, clock: Clock, step_size: StepSize) -> float:
        """Compute gamma_t of a round, the share of all losses' weights: 0 in warm-up.

        Then by `schedule`. `ramp`: linear to the fraction `ramp` of the rounds, then constant;
        `constant`: all of it at once; `rate`: in proportion to the step size; `target`: as `ramp`,
        which the gamma that the server sends never exceeds.
        """
        if self.schedule in ("ramp", "target"):
            return ramp_weight(clock.number, clock.rounds, warm_up=self.warm_up, ramp=self.ramp)
        if clock.number <= self.warm_up:
            return 0.0
        return 1.0 if self.schedule == "constant" else step_size(clock) / step_size.rate

    @property
    def refresh_epochs(self) -> int:
        """Local epochs from one refresh of the statistics to the next; 0: at a round's start."""
        return 0

    @property
    def has_threshold(self) -> bool:
        """Whether a spread below a threshold costs nothing."""
        return False

    def check_noise(self, sigma: float) -> None:
        """Raise SettingsError where an option is measured against the noise and sigma is 0."""

    def refresh(
        self,
        state: State | None,
        read_features: FeatureReader,
        streams: Sequence[Streams],
        step: int,
    ) -> State:
        """Compute the statistics of the features that the loss sees; see `LossTerm.refresh`."""

        def read() -> Iterator[StackedFeatures]:
            for part in read_features():
                yield part._replace(z=pool_positions(part.z, self._cut.positions))

        return self.fit(state, read, [stream(f"refresh-{step}") for stream in streams])

    def loss(self, state: State, batch: Batch, measure: bool) -> Term:
        """Compute the loss of the features that it sees; see `LossTerm.loss`."""
        z = pool_positions(batch.whitened, self._cut.positions)
        return self.evaluate(state, z, batch.y, measure)

    def fit(
        self,
        state: State | None,
        read_features: FeatureReader,
        generators: Sequence[torch.Generator],
    ) -> State:
        """Compute the statistics of K clients.

        Args:
            state: The state of all, each tensor (K, ...); None at the clients' first round.
            read_features: Reads the features of all, as the loss sees them.
            generators: The only source of random numbers of each client.

        Returns:
            Their next state.
        """
        return {}

    def evaluate(
        self, state: State, z: Float[Tensor, "K B D"], y: Int[Tensor, "K B"], measure: bool
    ) -> Term:
        """Compute the loss (K,) of the features that it sees, whitened."""
        raise NotImplementedError

    def bind(self, cut: CutShape) -> LossTerm | None:
        """Return the loss of the features at one cut, before they are pooled; None for `none`.

        Raises:
            SettingsError: The loss needs a sigma above 0, or positions that the features do not
                have.
            PluginError: A user's object makes no such loss, or one that breaks its contract.
        """
        self.check_noise(cut.sigma)
        bound = self.model_copy()
        bound._cut = self.pool_cut(cut)
        return bound

    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of each tensor of one client's state, by its name."""
        return {}

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
        """Return how messages name the penalty, nothing for a loss without one."""
        return ""


class NoCEL(CEL):
    """No conditional entropy loss."""

    kind: Literal["none"] = "none"

    def check_rules(self) -> None:
        """Refuse a weight that follows a goal where there is no loss that it is of."""
        if self.schedule == "target":
            raise SettingsError(
                "cel.schedule is 'target', cel.kind 'none': gamma is of a conditional entropy "
                "loss, and there is none; set cel.kind to 'cluster' or another, or cel.schedule to "
                "'ramp'"
            )

    def bind(self, cut: CutShape) -> None:
        """Return no loss."""


class RefreshedCEL(CEL):
    """Conditional entropy loss with statistics of all the client's features."""

    refresh_every: int = Field(
        1,
        ge=0,
        alias="refresh",
        description="Local epochs from one refresh of the statistics to the next; 0: each round.",
    )

    @property
    def refresh_epochs(self) -> int:
        """Local epochs from one refresh of the statistics to the next; 0: at a round's start."""
        return self.refresh_every


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
    """Compute by how much a loss counts at a step: 0, then a linear ramp, then constant.

    Switched on at full weight from the start, a conditional entropy loss pulls classes together
    before they are apart. The unit of a step is yours: rounds, epochs or batches.

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
