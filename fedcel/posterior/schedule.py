"""Schedules of a run, and the constants of a round of Langevin dynamics that follow from them.

Welling and Teh, ICML 2011, eq. 4, for the potential per example f_k of client k:
w <- w - eta (grad f_k + kappa (w - w_received)) + noise.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Literal, NamedTuple

from pydantic import AfterValidator, Field, model_validator

from fedcel.data import AUGMENTATIONS, check_augmentations
from fedcel.errors import SettingsError
from fedcel.losses import WeightedTerm
from fedcel.posterior.chain import MIN_ESS, MIN_SAMPLED_ROUNDS
from fedcel.settings_table import (
    Fraction,
    Kind,
    Off,
    Options,
    Positive,
    Words,
)


class StepSize(Kind, table="local", selector="schedule", shares_table=True):
    """Step size eta of a client, constant in a round."""

    schedule: str = Field(
        "cosine", description="eta: falls by a cosine until burn-in ends, or constant."
    )
    rate: Positive = Field(1.0, description="Step size eta at the start.")

    def __call__(self, number: int, burn_in: int) -> float:
        """Compute eta of round `number`, from 1; `burn_in` is the last of burn-in, 0: no such."""
        return self.rate


class ConstantStepSize(StepSize):
    """The same step size in all rounds."""

    schedule: Literal["constant"] = "constant"


class CosineStepSize(StepSize):
    """Half a cosine until burn-in ends, constant from there on."""

    schedule: Literal["cosine"] = "cosine"

    rate_end: float = Field(
        0.05, gt=0, le=1, description="Eta at the end of burn-in, as a share of local.rate."
    )

    def __call__(self, number: int, burn_in: int) -> float:
        """Compute eta of a round; see `StepSize`."""
        if number > burn_in and burn_in < 2:  # burn-in is too short to fall in
            return self.rate * self.rate_end
        progress = min(1.0, (number - 1) / max(1, burn_in - 1))
        cosine = (1 + math.cos(math.pi * progress)) / 2
        return self.rate * (self.rate_end + (1 - self.rate_end) * cosine)


class Prior(Kind, table="prior", selector="mode"):
    """Prior at the received model, beside one at 0."""

    mode: str = Field(
        "consistent",
        description="Prior at the received model: none, of fixed width, or set by its pull.",
    )
    scale: Positive | Off = Field(
        "none", description="Standard deviation s0 of the prior at 0 (weight decay 1/(N s0^2))."
    )

    def pull(self, rate: float, steps: int, total: int) -> float:
        """Compute kappa of w <- w - eta kappa (w - w_received), for N = `total` training images."""
        return 0.0

    def decay(self, total: int) -> float:
        """Compute the pull per unit step towards 0: 1/(N s0^2)."""
        return 0.0 if self.scale == "none" else 1 / (total * self.scale**2)


class NoPrior(Prior):
    """No prior at the received model."""

    mode: Literal["none"] = "none"


class FixedPrior(Prior):
    """Prior of a fixed width."""

    mode: Literal["fixed"] = "fixed"

    width: Positive = Field(1.0, description="Standard deviation s of the prior.")

    def pull(self, rate: float, steps: int, total: int) -> float:
        """Compute 1/(N s^2), the gradient of -log N(w_received, s^2 I) per example.

        Raises:
            SettingsError: The prior is so narrow that a step would overshoot (eta kappa >= 1).
        """
        kappa = 1 / (total * self.width**2)
        if rate * kappa >= 1:
            raise SettingsError(
                f"prior.mode is {self.mode!r}, prior.width {self.width}: eta*kappa is "
                f"{rate * kappa:.3g}, must be below 1; use a width of at least "
                f"{(rate / total) ** 0.5:.3g}, or a smaller local.rate"
            )
        return kappa


class ConsistentPrior(Prior):
    """Prior that pulls each round back by the same share, whatever its steps."""

    mode: Literal["consistent"] = "consistent"

    share: Fraction = Field(
        0.1, alias="pull", description="Share of a round's update that the prior takes back."
    )

    def pull(self, rate: float, steps: int, total: int) -> float:
        """Compute kappa of (1 - eta kappa)^steps = 1 - share."""
        return (1 - float((1 - self.share) ** (1 / steps))) / rate


LANGEVIN = "langevin"


def _check_sampler(name: str) -> str:
    if name != LANGEVIN and ":" not in name:
        raise ValueError(f"must be {LANGEVIN!r} or 'package.module:object'")
    return name


_SAMPLER_WORDS = Words(f"{LANGEVIN}, or package.module:object")
_AUGMENTATION_WORDS = Words(f"none, or some of {', '.join(AUGMENTATIONS)}")


class LocalSettings(Options):
    """Local steps of a client in a round."""

    sampler: Annotated[str, AfterValidator(_check_sampler), _SAMPLER_WORDS] = Field(
        LANGEVIN, description="Sampler of a client's steps: langevin, or an import string."
    )
    steps: int = Field(
        20, ge=0, description="Steps a client takes in a round; 0: local.epochs says how many."
    )
    epochs: float = Field(
        0.0,
        ge=0,
        le=1e6,
        allow_inf_nan=False,
        description="Passes of a client over its own images in a round; 0: local.steps counts.",
    )
    batch_size: int = Field(32, ge=1, description="Images per step; a client with fewer uses all.")
    balance: bool = Field(
        False,
        description="Draw batches with equal numbers of images from each of the client's classes.",
    )
    augment: Annotated[str, AfterValidator(check_augmentations), _AUGMENTATION_WORDS] = Field(
        "none",
        description="Random changes of images while the encoder trains, separated by commas.",
    )
    step_size: StepSize = CosineStepSize()
    at_once: Annotated[int, Field(ge=1)] | Literal["auto"] = Field(
        "auto",
        description="Largest number of clients that the engine local trains at once; auto: by net.",
    )
    precision: Literal["auto", "float32", "bfloat16"] = Field(
        "float32",
        description="Number format of the net; auto: bfloat16 for convolutions if the CPU has it.",
    )
    clip: Positive | Off = Field(
        "none", description="Largest L2 norm of a step's gradient; clipping changes the target."
    )

    @model_validator(mode="before")
    @classmethod
    def _replace_default_steps(cls, raw: object) -> object:
        """Let a number of epochs take the place of the default number of steps."""
        if isinstance(raw, Mapping) and raw.get("epochs") and "steps" not in raw:
            return {**raw, "steps": 0}
        return raw

    def check_rules(self) -> None:
        """Refuse a round of steps and epochs, of neither, or of balanced epochs: SettingsError."""
        if bool(self.steps) == bool(self.epochs):
            raise SettingsError(
                f"local.steps is {self.steps} and local.epochs {self.epochs:g}: exactly one of "
                "them must be above 0; set the other to 0"
            )
        if self.epochs and self.balance:
            raise SettingsError(
                f"local.epochs is {self.epochs:g} and local.balance true: balanced batches show "
                "images of rare classes more often, so that there is no pass; set local.steps"
            )

    def count_steps(self, images: int) -> int:
        """Count the steps of a client's round: `steps`, or ceil(epochs x images / batch).

        Args:
            images: Training images of the client, 1 or more.

        Returns:
            The steps; a batch is of `batch_size` images, or of all where the client has fewer.
        """
        if self.steps:
            return self.steps
        passes = self.epochs * images / min(self.batch_size, images)
        return max(1, math.ceil(round(passes, 9)))  # .1 of 30 batches is 3


class ChainSettings(Options):
    """Global models that are kept as posterior samples."""

    scope: Literal["head", "full"] = Field(
        "head",
        description="head: the encoder is frozen after burn-in; full: the whole net is sampled.",
    )
    burn_in: float = Field(0.8, ge=0, le=1, description="Fraction of the rounds before sampling.")
    thin: int = Field(
        2, ge=0, description="Rounds between kept samples; 0: the autocorrelation time."
    )
    stop: bool = Field(False, description="Stop before `rounds` once all convergence checks pass.")
    samples: int = Field(
        16, ge=1, description="Largest number of kept samples; the oldest is dropped first."
    )

    def burn_in_rounds(self, rounds: int) -> int:
        """Compute the last round of burn-in, from 0 to `rounds`."""
        return math.ceil(round(self.burn_in * rounds, 9))  # .55 of 100 is 55

    def check_rounds(self, rounds: int, temperature: float) -> None:
        """Refuse a chain that is too short to be thinned or checked: SettingsError."""
        sampled = rounds - self.burn_in_rounds(rounds)
        if self.stop and sampled <= MIN_ESS:
            raise SettingsError(
                f"chain.stop with {sampled} rounds after burn-in: it needs {MIN_ESS:g} effective "
                "samples; raise rounds or lower chain.burn-in"
            )
        if temperature > 0 and self.thin == 0 and 0 < sampled < MIN_SAMPLED_ROUNDS:
            raise SettingsError(
                f"chain.thin 0 with {sampled} rounds after burn-in: thinning by the "
                f"autocorrelation time needs {MIN_SAMPLED_ROUNDS} rounds; set chain.thin to 1 or "
                "more"
            )

    def is_sample_due(
        self, number: int, sampled: Sequence[int], autocorrelation: int | None
    ) -> bool:
        """Whether the model after a sampled round is to be kept.

        Rounds are counted from the last sample; the first round of the chain is one. Where the
        autocorrelation time decides, nothing is kept until it is known, in rounds.
        """
        interval = self.thin or autocorrelation
        return interval is not None and (not sampled or number - sampled[-1] >= interval)


class RoundOrder(NamedTuple):
    """Numbers that a round takes from its server; the run's settings give all others.

    Attributes:
        number: The round, from 1.
        total: N, the training images of all clients.
        threshold: Takes the place of `cel.threshold`; None: the settings' own.
        gamma: Upper limit of the conditional entropy loss's gamma, besides the ramp; None: there
            is none.
        proximal: Pull towards the received model besides the prior's, as of FedProx (Li et al.,
            MLSys 2020, eq. 2).
    """

    number: int = 1
    total: int = 1
    threshold: float | None = None
    gamma: float | None = None
    proximal: float = 0.0


class RoundPlan(NamedTuple):
    """All that is decided about a round, for clients that take as many steps.

    `RoundSchedule.plan` makes it, once a round; all that follows reads it.

    Attributes:
        rate: eta.
        pull: kappa, the pull towards the received model: the prior's, plus FedProx's.
        decay: 1/(N s0^2), the pull towards 0.
        noise_variance: Variance of the Langevin noise per step of a client that holds everything.
        is_encoder_frozen: Whether only the head moves.
        temperature: T.
        is_sampling: Whether the round is of the chain: after burn-in.
        local: Steps, batches, augmentation, clip and sampler of this round.
        terms: Losses that act, with their weights.
        order: The server's numbers.
    """

    rate: float = 0.0
    pull: float = 0.0
    decay: float = 0.0
    noise_variance: float = 0.0
    is_encoder_frozen: bool = False
    temperature: float = 0.0
    is_sampling: bool = False
    local: LocalSettings = LocalSettings()
    terms: tuple[WeightedTerm, ...] = ()
    order: RoundOrder = RoundOrder()

    @property
    def number(self) -> int:
        """The round, from 1."""
        return self.order.number

    @property
    def steps(self) -> int:
        """Steps of a client."""
        return self.local.steps

    @property
    def clip(self) -> float | None:
        """Largest norm of a step's gradient, None: no limit."""
        return None if self.local.clip == "none" else self.local.clip

    @property
    def weights(self) -> dict[str, float]:
        """Weight of each loss that acts, by its term's name."""
        return {term.name: term.weight for term in self.terms}

    def noise(self, weight: float) -> float:
        """Compute the standard deviation of the noise per step of a client of weight w_k.

        Deltas are averaged by w_k, so each client adds 1/w_k times the variance.
        """
        return math.sqrt(self.noise_variance / weight)


def temperature_ratio(rate: float, kappa: float, steps: int) -> float:
    """Compute T_eff/T = (1 + q^steps)/(1 + q), q = 1 - eta kappa, of a prior that moves each round.

    For small steps. The prior's centre moves with the chain, so it damps without adding noise.
    """
    q = 1 - rate * kappa
    return (1 + q**steps) / (1 + q)


def noise_variance(
    rate: float,
    temperature: float,
    total: int,
    *,
    kappa: float = 0.0,
    steps: int = 1,
    gain: float = 1.0,
) -> float:
    """Compute the variance of the noise that gives a chain of all examples temperature T.

    Args:
        rate: eta.
        temperature: T.
        total: N, the examples of all clients.
        kappa: Pull of a prior around the received model, which cools the chain.
        steps: Steps of a round.
        gain: By which the server multiplies the mean delta.

    Returns:
        Per step and parameter: 2 eta T/N, divided by gain and cooling.

    References:
        Welling and Teh, ICML 2011, eq. 4.
    """
    return 2 * rate * temperature / (total * gain * temperature_ratio(rate, kappa, steps))


class RoundSchedule(NamedTuple):
    """Schedules of a run, from which the plan of each round follows.

    Attributes:
        rounds: Rounds of the run.
        local: Steps, step size and clip.
        prior: Prior at the received model, and at 0.
        chain: Burn-in, and what is sampled.
        temperature: T after burn-in.
        gain: Factor of the mean delta on the server.
        terms: Makes the losses besides the task's, at their full weight.
    """

    rounds: int
    local: LocalSettings
    prior: Prior
    chain: ChainSettings
    temperature: float
    gain: float = 1.0
    terms: Callable[[], Sequence[WeightedTerm]] = tuple

    @property
    def burn_in(self) -> int:
        """Last round of burn-in, 0: there is none."""
        return self.chain.burn_in_rounds(self.rounds)

    def gives_sample(self, number: int) -> bool:
        """Whether the model after a round may be a posterior sample; without noise none is."""
        return self.temperature > 0 and number > self.burn_in

    def plan(self, order: RoundOrder, images: int = 0) -> RoundPlan:
        """Decide all of a round.

        Once the encoder is frozen no added loss acts, nothing is augmented, and batches are not
        balanced: they would change the sampled posterior.

        Args:
            order: The server's numbers.
            images: N_k of the client that the plan is for, whose steps follow from it where they
                are given in epochs; 0: one batch.

        Raises:
            SettingsError: Step size and priors together would make every step overshoot.
        """
        number, total, threshold, gamma, proximal = order
        is_sampling = number > self.burn_in
        is_encoder_frozen = is_sampling and self.chain.scope == "head"
        steps = self.local.count_steps(images or self.local.batch_size)
        changes: dict[str, object] = {"steps": steps, "epochs": 0.0}
        if is_encoder_frozen:
            changes |= {"balance": False, "augment": "none"}
        rate = self.local.step_size(number, self.burn_in)
        kappa, decay = self.prior.pull(rate, steps, total), self.prior.decay(total)
        if rate * (kappa + decay + proximal) >= 1:
            raise SettingsError(
                f"eta {rate:g} times prior.scale's {decay:.3g}, the received model's {kappa:.3g} "
                f"and FedProx's pull {proximal:g} is 1 or more: every step would "
                "overshoot; lower local.rate, or raise prior.scale"
            )
        temperature = self.temperature if is_sampling else 0.0
        terms: list[WeightedTerm] = []
        if not is_encoder_frozen:
            share = rate / self.local.step_size.rate
            terms = [
                term.weigh(number, self.rounds, share, gamma=gamma, threshold=threshold)
                for term in self.terms()
            ]
        return RoundPlan(
            rate=rate,
            pull=kappa + proximal,
            decay=decay,
            noise_variance=noise_variance(
                rate, temperature, total, kappa=kappa, steps=steps, gain=self.gain
            ),
            is_encoder_frozen=is_encoder_frozen,
            temperature=temperature,
            is_sampling=is_sampling,
            local=self.local.model_copy(update=changes),
            terms=tuple(term for term in terms if term.weight > 0),
            order=order,
        )

    def plan_client(self, plan: RoundPlan, images: int) -> RoundPlan:
        """Decide the round of a client with so many images, whose steps may be its own."""
        steps = self.local.count_steps(images or self.local.batch_size)
        return plan if steps == plan.steps else self.plan(plan.order, images)
