"""What clients and the server do in a round, and which models are kept."""

from typing import Annotated, Literal

from pydantic import Field

from fedcel.settings.group_base import Group, Off, Positive, part_name, part_words

SAMPLERS = ("langevin",)


class LocalSettings(Group):
    """What a client does in a round."""

    sampler: Annotated[str, part_name(SAMPLERS), part_words(SAMPLERS)] = Field(
        "langevin", description="How a client steps: langevin, or an import string."
    )
    steps: int = Field(20, ge=1, description="Steps a client takes in a round.")
    batch_size: int = Field(32, ge=1, description="Images a step; at most what the client holds.")
    balance: bool = Field(
        False, description="Draw batches with equally many images of each class that a client has."
    )
    augment: Literal["none", "affine", "affine-flip"] = Field(
        "none", description="Small random turns, scalings and shifts of training images; mirrored."
    )
    rate: Positive = Field(1.0, description="Step size eta at the start.")
    schedule: Literal["cosine", "constant", "decay", "cyclical"] = Field(
        "cosine",
        description="eta: cosine or power law (decay) until burn-in ends, constant, or cyclical.",
    )
    rate_end: float = Field(
        0.05, gt=0, le=1, description="Eta at the end of the cosine, as a share of local.rate."
    )
    cycles: int = Field(4, ge=1, description="Cycles of the schedule 'cyclical' over all rounds.")
    explore: float = Field(
        0.8, ge=0, lt=1, description="Share of a cycle that only explores: no noise, no samples."
    )
    clip: Positive | Off = Field(
        "none", description="Largest L2 norm of a step's gradient; clipping changes the target."
    )
    control: Literal["none", "fresh", "stale"] = Field(
        "none", description="Control variate against drift in sampling, of this or last gradients."
    )
    shared_noise: float = Field(
        0.0, ge=0, lt=1, description="rho: share of the Langevin noise that all clients draw alike."
    )
    precondition: Literal["none", "rms"] = Field(
        "none", description="rms: a step size a parameter, adapted by the server in burn-in."
    )


class PriorSettings(Group):
    """The Gaussian priors of the local posterior."""

    mode: Literal["none", "fixed", "consistent", "patent-code"] = Field(
        "consistent", description="Prior at the received model: none, of a fixed width, or by pull."
    )
    compensate: bool = Field(
        True, description="Raise the noise by what a prior that moves with the chain cools it."
    )
    width: Positive = Field(1.0, description="Standard deviation s of the 'fixed' prior.")
    pull: float = Field(
        0.1, gt=0, lt=1, description="Share of a round's way that 'consistent' pulls back."
    )
    scale: Positive | Off = Field(
        "none", description="Standard deviation s0 of the prior at 0 (weight decay 1/(N s0^2))."
    )


class StrategySettings(Group):
    """The server's side."""

    name: str = Field(
        "posterior", description="posterior, or a Flower strategy as 'package.module:object'."
    )
    upload: Literal["delta", "weights"] = Field(
        "delta", description="What a client sends; stock strategies of Flower average weights."
    )
    momentum: float = Field(0.5, ge=0, lt=1, description="Beta of the sliding average of deltas.")
    damped: bool = Field(
        True, description="m <- beta m + (1-beta) D; false: + D, Flower's FedAvgM, never sampling."
    )
    gain: Positive = Field(1.0, description="Gamma, the server's step along that average.")
    proximal: float = Field(
        0.0, ge=0, description="Mu of Flower's FedProx: the pull mu (w - w_received) per step."
    )
    timeout: Positive = Field(
        3600.0, description="Seconds a round waits for replies; who is later is left out of it."
    )
    max_norm: Positive | Off = Field(
        "none",
        description="Largest L2 norm of a delta that the server accepts; none: a thousand times "
        "the model's own, plus 1.",
    )
    aggregation: Literal[
        "mean", "clipped", "median", "trimmed", "krum", "multi-krum", "geometric-median"
    ] = Field("mean", description="How deltas become one; all but mean are for temperature 0.")
    trim: float = Field(
        0.2, gt=0, lt=0.5, description="Share of the weight that 'trimmed' cuts off at each end."
    )
    byzantine: int = Field(1, ge=1, description="Hostile clients that Krum is to bear in a round.")


LEAST_DRAWS = 20
"""Sampled rounds below which nothing is said of a chain."""


class ChainSettings(Group):
    """Which global models are kept as posterior samples."""

    scope: Literal["head", "full"] = Field(
        "head", description="head: the encoder is frozen after burn-in; full: all is sampled."
    )
    burn_in: float = Field(0.8, ge=0, le=1, description="Fraction of the rounds before sampling.")
    heat: float = Field(
        0.0, ge=0, description="Temperature during burn-in, as a share of `temperature`."
    )
    anneal: bool = Field(
        False, description="Burn-in goes from `chain.heat` to the full temperature linearly."
    )
    thin: int = Field(
        2, ge=0, description="Rounds from one kept sample to the next; 0: autocorrelation time."
    )
    stop: bool = Field(
        False, description="Stop once nothing speaks against convergence, before `rounds`."
    )
    probes: int = Field(
        16, ge=1, description="Validation images whose logits the chain is diagnosed on."
    )
    samples: int = Field(16, ge=1, description="Samples kept at most; the oldest goes first.")


class UpdateSettings(Group):
    """How an update is bounded and perturbed before it leaves its holder."""

    clip: Positive | Off = Field(
        "none", description="Largest L2 norm of an uploaded delta; longer ones are scaled down."
    )
    noise: float = Field(
        0.0,
        ge=0,
        allow_inf_nan=False,
        description="Sigma of the Gaussian noise on an uploaded delta, in units of update.clip.",
    )
    delta: float = Field(
        1e-6, ge=1e-15, lt=1, description="Delta at which result.json states epsilon of all rounds."
    )
