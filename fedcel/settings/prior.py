"""Settings of the Gaussian priors of the local posterior."""

from typing import Literal

from pydantic import Field

from fedcel.settings.group_base import Fraction, Group, Off, Positive


class PriorSettings(Group):
    """The Gaussian priors of the local posterior."""

    mode: Literal["none", "fixed", "consistent"] = Field(
        "consistent", description="Prior at the received model: none, of a fixed width, or by pull."
    )
    compensate: bool = Field(
        True, description="Raise the noise by what a prior that moves with the chain cools it."
    )
    width: Positive = Field(1.0, description="Standard deviation s of the 'fixed' prior.")
    pull: Fraction = Field(0.1, description="Share of a round's way that 'consistent' pulls back.")
    scale: Positive | Off = Field(
        "none", description="Standard deviation s0 of the prior at 0 (weight decay 1/(N s0^2))."
    )
