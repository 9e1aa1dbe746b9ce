"""Gaussian priors of the local posterior, as the pull that each makes."""

from typing import Literal

from pydantic import Field

from fedcel.errors import SettingsError
from fedcel.options import Fraction, Kind, Off, Positive


class Prior(Kind, table="prior", selector="mode"):
    """Prior at the received model, beside one at 0."""

    mode: str = Field("consistent", description="Width of the prior at the received model.")
    scale: Positive | Off = Field(
        "none", description="Standard deviation s0 of the prior at 0 (weight decay 1/(N s0^2))."
    )

    def pull(self, rate: float, steps: int, total: int) -> float:
        """Compute kappa, the pull per unit step towards the received model.

        Args:
            rate: Step size eta.
            steps: Steps of a round.
            total: N, the training images of all clients.

        Returns:
            kappa of w <- w - eta kappa (w - w_received).
        """
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
        0.1, alias="pull", description="Share of a round's way that the prior pulls back."
    )

    def pull(self, rate: float, steps: int, total: int) -> float:
        """Compute kappa of (1 - eta kappa)^steps = 1 - share."""
        return (1 - float((1 - self.share) ** (1 / steps))) / rate
