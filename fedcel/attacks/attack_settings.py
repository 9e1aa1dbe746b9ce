"""Settings of the attacks."""

from typing import Literal

from pydantic import Field

from fedcel.settings_table import Options, Positive

MAX_CANDIDATES = 100
"""Images to pick the right one from, at most."""


class AttackSettings(Options):
    """Attacks, and the knowledge, effort and targets of the attacker."""

    names: str = Field(
        "optimal,decoder,kernel-ridge",
        description="Attacks or import strings; NAME*M gets M independent answers per target.",
    )
    knowledge: Literal["held-out", "training-size"] = Field(
        "held-out", description="Auxiliary images: a disjoint set, or the training images."
    )
    budget: Positive = Field(1.0, description="Multiple of each attack's default effort.")
    seconds: float = Field(
        0.0, ge=0, allow_inf_nan=False, description="Most seconds of each attack seed; 0: no limit."
    )
    seeds: int = Field(3, ge=1, description="Attack seeds; each is a row of the results.")
    targets: int = Field(0, ge=0, description="Number of targets to rebuild; 0: all.")
    batch: int = Field(1, ge=1, description="Images in one attacked update of a client.")
    local_steps: int = Field(
        1, ge=1, description="Local steps of one attacked update, each on all its images."
    )
    received: Literal["first", "heated", "last", "trapped"] = Field(
        "first",
        description="Model of attacked updates: of round 1, the same with full noise, "
        "after burn-in, or trap weights.",
    )

    @property
    def candidates(self) -> int:
        """Images to pick the right one from: 100, or all targets where they are fewer."""
        return min(MAX_CANDIDATES, self.targets or MAX_CANDIDATES)

    @property
    def upload(self) -> str:
        """Images, steps and received model behind an attacked update."""
        return f"batch {self.batch}, steps {self.local_steps}, model {self.received}"
