"""Settings of the clip of an update, and of its noise."""

from pydantic import Field

from fedcel.errors import SettingsError
from fedcel.settings_table import Off, Options, Positive

UPDATE_DELTA = 1e-6
"""Delta at which epsilon of all rounds of noisy updates is stated."""
SMALLEST_NOISE, LARGEST_NOISE = 1e-20, 1e20
"""Range of the clip and of sigma: where single precision holds them."""


class UpdateSettings(Options):
    """Clip and noise of an update before it leaves its holder."""

    clip: Positive | Off = Field(
        "none", description="Largest L2 norm of an uploaded delta; longer ones are scaled down."
    )
    noise: float = Field(
        0.0,
        ge=0,
        allow_inf_nan=False,
        description="Sigma of the Gaussian noise on an uploaded delta, in units of update.clip.",
    )

    def check_rules(self) -> None:
        """Refuse noise of no size, and a clip or a sigma that single precision cannot hold."""
        clip, noise = self.clip, self.noise
        if clip == "none":
            if noise:
                raise SettingsError(
                    f"update.noise is {noise:g} and update.clip 'none': the noise is in units of "
                    "the clip; set update.clip to the norm of a usual update, as 1"
                )
            return
        for size in (clip, clip * noise) if noise else (clip,):
            if not SMALLEST_NOISE < size < LARGEST_NOISE:
                raise SettingsError(
                    f"update.clip is {clip:g} and update.noise {noise:g}: clip and sigma must lie "
                    f"between {SMALLEST_NOISE:g} and {LARGEST_NOISE:g}, where single precision can "
                    "hold them"
                )
