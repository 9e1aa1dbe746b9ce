"""Settings of the chain: which global models are kept as posterior samples."""

from typing import Literal

from pydantic import Field

from fedcel.options import Options

MIN_ESS = 100.0
"""Effective samples below which a chain is not said to have converged."""
MIN_SAMPLED_ROUNDS = 20
"""Sampled rounds below which nothing is said of a chain."""


class ChainSettings(Options):
    """Which global models are kept as posterior samples."""

    scope: Literal["head", "full"] = Field(
        "head", description="head: the encoder is frozen after burn-in; full: all is sampled."
    )
    burn_in: float = Field(0.8, ge=0, le=1, description="Fraction of the rounds before sampling.")
    heat: float = Field(
        0.0, ge=0, description="Temperature during burn-in, as a share of `temperature`."
    )
    thin: int = Field(
        2, ge=0, description="Rounds from one kept sample to the next; 0: autocorrelation time."
    )
    stop: bool = Field(
        False, description="Stop once nothing speaks against convergence, before `rounds`."
    )
    samples: int = Field(16, ge=1, description="Samples kept at most; the oldest goes first.")
