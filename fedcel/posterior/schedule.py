"""Schedules of a run, and the constants of a round of Langevin dynamics that follow from them.

Welling and Teh, ICML 2011, eq. 4, for the potential per example f_k of client k:
w <- w - eta (grad f_k + kappa (w - w_received)) + noise.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Annotated, Literal, NamedTuple

import torch
from pydantic import Field

from fedcel.errors import SettingsError
from fedcel.options import Fraction, Kind, Off, Options, Positive, part_name, part_words
from fedcel.seeding import make_generator


class Clock(NamedTuple):
    """Round of a run.

    Attributes:
        number: Counted from 1.
        rounds: Rounds of the run.
        burn_in: Last round of burn-in, 0: there is none.
    """

    number: int
    rounds: int
    burn_in: int

    @property
    def is_sampling(self) -> bool:
        """Whether the round is of the chain: after burn-in."""
        return self.number > self.burn_in


class StepSize(Kind, table="local", selector="schedule", shares_table=True):
    """Step size eta of a client, constant in a round."""

    schedule: str = Field(
        "cosine",
        description="eta: cosine or power law (decay) until burn-in ends, or constant.",
    )
    rate: Positive = Field(1.0, description="Step size eta at the start.")

    def __call__(self, clock: Clock) -> float:
        """Compute eta of a round."""
        return self.rate


class ConstantStepSize(StepSize):
    """The same step size in all rounds."""

    schedule: Literal["constant"] = "constant"


class _FallingStepSize(StepSize):
    """Step size that falls until burn-in ends, and stays there."""

    rate_end: float = Field(
        0.05, gt=0, le=1, description="Eta at the end of burn-in, as a share of local.rate."
    )

    def __call__(self, clock: Clock) -> float:
        """Compute eta of a round."""
        if clock.is_sampling and clock.burn_in < 2:  # burn-in is too short to fall in
            return self.rate * self.rate_end
        return self.rate * self._share(clock)

    def _share(self, clock: Clock) -> float:
        """Compute the share of the first step size."""
        raise NotImplementedError


class CosineStepSize(_FallingStepSize):
    """Half a cosine."""

    schedule: Literal["cosine"] = "cosine"

    def _share(self, clock: Clock) -> float:
        progress = min(1.0, (clock.number - 1) / max(1, clock.burn_in - 1))
        cosine = (1 + math.cos(math.pi * progress)) / 2
        return self.rate_end + (1 - self.rate_end) * cosine


class DecayingStepSize(_FallingStepSize):
    """Power law eta_1 t^-c.

    References:
        Welling and Teh, ICML 2011, section 4.
    """

    schedule: Literal["decay"] = "decay"

    def _share(self, clock: Clock) -> float:
        power = -math.log(self.rate_end) / math.log(max(2, clock.burn_in))
        return float(min(clock.number, clock.burn_in) ** -power)


class Prior(Kind, table="prior", selector="mode"):
    """Prior at the received model, beside one at 0."""

    mode: str = Field("consistent", description="Width of the prior at the received model.")
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


SAMPLERS = ("langevin",)


class LocalSettings(Options):
    """Local steps of a client in a round."""

    sampler: Annotated[str, part_name(SAMPLERS), part_words(SAMPLERS)] = Field(
        "langevin", description="Sampler of a client's steps: langevin, or an import string."
    )
    steps: int = Field(20, ge=1, description="Steps a client takes in a round.")
    batch_size: int = Field(32, ge=1, description="Images per step; a client with fewer uses all.")
    balance: bool = Field(
        False,
        description="Draw batches with equal numbers of images from each of the client's classes.",
    )
    augment: Literal["none", "affine", "affine-flip"] = Field(
        "none",
        description="Random turns, scalings, shifts (and mirroring) while the encoder trains.",
    )
    step_size: StepSize = CosineStepSize()
    at_once: Annotated[int, Field(ge=1)] | Literal["auto"] = Field(
        "auto",
        description="Largest number of clients that the engine local trains at once; auto: by net.",
    )
    clip: Positive | Off = Field(
        "none", description="Largest L2 norm of a step's gradient; clipping changes the target."
    )
    control: Literal["none", "fresh"] = Field(
        "none", description="fresh: a control variate against client drift while sampling."
    )


class ChainSettings(Options):
    """Global models that are kept as posterior samples."""

    scope: Literal["head", "full"] = Field(
        "head",
        description="head: the encoder is frozen after burn-in; full: the whole net is sampled.",
    )
    burn_in: float = Field(0.8, ge=0, le=1, description="Fraction of the rounds before sampling.")
    heat: float = Field(
        0.0, ge=0, description="Temperature during burn-in, as a share of `temperature`."
    )
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

    def freezes_encoder(self, clock: Clock) -> bool:
        """Whether the encoder stands still in a round."""
        return clock.is_sampling and self.scope == "head"

    def is_sample_due(
        self, number: int, sampled: Sequence[int], autocorrelation: int | None
    ) -> bool:
        """Whether the model after a sampled round is to be kept.

        Rounds are counted from the last sample; the first round of the chain is one. Where the
        autocorrelation time decides, nothing is kept until it is known, in rounds.
        """
        interval = self.thin or autocorrelation
        return interval is not None and (not sampled or number - sampled[-1] >= interval)


class RoundPlan(NamedTuple):
    """One client's round in plain numbers."""

    rate: float
    """eta."""
    pull: float
    """kappa, the pull towards the received model."""
    decay: float
    """1/(N s0^2), the pull towards 0."""
    noise: float
    """The standard deviation of the client's own Langevin noise per step."""
    is_encoder_frozen: bool
    temperature: float
    clip: float | None = None
    """The largest norm of a step's gradient."""
    steps: int = 1
    control: str = "none"
    """The control variate of this round."""
    weights: Mapping[str, float] = {}
    """Weight of each added loss, by its term's name."""


def temperature_ratio(rate: float, kappa: float, steps: int) -> float:
    """Compute T_eff/T = (1 + q^steps)/(1 + q), q = 1 - eta kappa, of a prior that moves each round.

    The limit for a small step; the prior's centre follows the chain, so it damps without adding
    its own share of noise.
    """
    q = 1 - rate * kappa
    return (1 + q**steps) / (1 + q)


def noise_variance(
    *,
    rate: float,
    temperature: float,
    total: int,
    weight: float,
    kappa: float = 0.0,
    steps: int = 1,
    gain: float = 1.0,
) -> float:
    """Compute the variance of the noise that gives a federation's chain temperature T.

    Each client adds 1/w_k times the noise of a chain that holds all examples, since deltas are
    averaged by w_k.

    Args:
        rate: eta.
        temperature: T.
        total: N, the examples of all clients.
        weight: w_k, of this client's delta.
        kappa: Pull of a prior around the received model, which cools the chain.
        steps: Steps of a round.
        gain: By which the server multiplies the mean delta.

    Returns:
        Per step and parameter: 2 eta T/(N w_k), divided by gain and cooling.

    References:
        Welling and Teh, ICML 2011, eq. 4.
    """
    ratio = temperature_ratio(rate, kappa, steps)
    return 2 * rate * temperature / (total * gain * ratio) / weight


class RoundSchedule(NamedTuple):
    """Schedules of a run, from which the constants of each round follow.

    Attributes:
        rounds: Rounds of the run.
        local: Steps, step size, clip and control variate.
        prior: Prior at the received model, and at 0.
        chain: Burn-in, and what is sampled.
        temperature: T after burn-in.
        gain: Factor of the mean delta on the server.
        weigh_losses: Weights of the added losses in a round, by their terms' names; its second
            argument limits the gamma of the conditional entropy loss.
    """

    rounds: int
    local: LocalSettings
    prior: Prior
    chain: ChainSettings
    temperature: float
    gain: float = 1.0
    weigh_losses: Callable[[Clock, float | None], Mapping[str, float]] = lambda clock, limit: {}

    def clock(self, number: int) -> Clock:
        """Make the clock of round `number`, from 1."""
        return Clock(number, self.rounds, self.chain.burn_in_rounds(self.rounds))

    def freezes_encoder(self, number: int) -> bool:
        """Whether the encoder stands still in a round."""
        return self.chain.freezes_encoder(self.clock(number))

    def gives_sample(self, number: int) -> bool:
        """Whether the model after a round may be a posterior sample; without noise none is."""
        return self.temperature > 0 and self.clock(number).is_sampling

    def plan(
        self,
        number: int,
        weight: float,
        total: int,
        *,
        gamma: float | None = None,
        proximal: float = 0.0,
    ) -> RoundPlan:
        """Compute the constants of round `number`, from 1, for one client.

        Args:
            number: The round.
            weight: w_k, which the server gives to the client's delta; 1: it holds everything.
            total: N, the training images of all clients.
            gamma: Upper limit of the conditional entropy loss's gamma, besides the ramp.
            proximal: Pull towards the received model besides the prior's, as of FedProx (Li et al.,
                MLSys 2020, eq. 2).

        Raises:
            SettingsError: Step size and priors together would make every step overshoot.
        """
        clock, steps = self.clock(number), self.local.steps
        eta = self.local.step_size(clock)
        kappa, decay = self.prior.pull(eta, steps, total), self.prior.decay(total)
        if eta * (kappa + decay + proximal) >= 1:
            raise SettingsError(
                f"eta {eta:g} times prior.scale's {decay:.3g}, the received model's {kappa:.3g} "
                f"and FedProx's pull {proximal:g} is 1 or more: every step would "
                "overshoot; lower local.rate, or raise prior.scale"
            )
        temperature = self.temperature * (1.0 if clock.is_sampling else self.chain.heat)
        variance = noise_variance(
            rate=eta,
            temperature=temperature,
            total=total,
            weight=weight,
            kappa=kappa,
            steps=steps,
            gain=self.gain,
        )
        return RoundPlan(
            rate=eta,
            pull=kappa + proximal,
            decay=decay,
            noise=math.sqrt(variance),
            is_encoder_frozen=self.chain.freezes_encoder(clock),
            temperature=temperature,
            clip=None if self.local.clip == "none" else self.local.clip,
            steps=steps,
            weights=self.weigh_losses(clock, gamma),
            control=self.local.control if clock.is_sampling else "none",
        )


def select_clients(seed: int, clients: int, per_round: int, number: int) -> list[int]:
    """Draw the clients that train in a round.

    Args:
        seed: The run's.
        clients: Clients of the run.
        per_round: Clients drawn; 0: all.
        number: The round, from 1.

    Returns:
        Their partitions, ascending.
    """
    if per_round in (0, clients):
        return list(range(clients))
    order = torch.randperm(clients, generator=make_generator(seed, "clients", number))
    return sorted(order[:per_round].tolist())


def weigh_clients(examples: Mapping[int, int], selected: Collection[int]) -> dict[int, float]:
    """Compute the weights of the clients that take part in a round; unbiased over the draw.

    Args:
        examples: Partition -> N_k of all K clients.
        selected: The m that take part.

    Returns:
        Partition -> w_k = (K/m) N_k/N.
    """
    total = sum(examples.values())
    scale = len(examples) / len(selected)
    return {client: scale * examples[client] / total for client in selected}
