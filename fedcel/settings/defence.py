"""Settings of the rival defence, and the rule of its strength."""

from typing import Annotated, Literal

from pydantic import Field

from fedcel.errors import SettingsError
from fedcel.options import Options, Positive, part_name, part_words

DEFENCES = (
    "none",
    "noise",
    "bottleneck",
    "dropout",
    "nopeek",
    "adversarial",
    "noise+nopeek",
    "noise+adversarial",
    "learned-noise",
    "vib",
    "ceb",
)
LAW_DEFENCES = ("learned-noise", "vib", "ceb")
"""Those whose loss is of the law of what is sent."""
USUAL_STRENGTHS = {
    "none": 0.0,
    "noise": 0.3,
    "bottleneck": 16.0,
    "dropout": 0.5,
    "learned-noise": 0.003,
    "vib": 0.03,
    "ceb": 0.3,
}
"""Strengths of `auto`; a weight of 1 for all other defences."""


class DefenceSettings(Options):
    """A rival defence, alone or beside the conditional entropy loss."""

    name: Annotated[str, part_name(DEFENCES), part_words(DEFENCES)] = Field(
        "none", description="A defence of smashed data, or an import string; noise+... for two."
    )
    strength: Annotated[float, Field(ge=0, allow_inf_nan=False)] | Literal["auto"] = Field(
        "auto",
        description="noise: sigma; bottleneck: values sent; dropout: chance; else the weight; "
        "auto: a usual one.",
    )
    noise: Positive = Field(
        0.3, description="Sigma of noise+nopeek and noise+adversarial, in place of net.noise."
    )
    rate: Positive = Field(0.001, description="Adam step of the adversary's decoder.")
    width: int = Field(256, ge=1, description="Hidden width of the adversary's decoder.")
    marginal: Literal["learned", "fixed"] = Field(
        "learned",
        description="Gaussians of vib and ceb: learned by each client, or fixed.",
    )
    marginal_rate: Positive = Field(
        0.01, description="Adam step of the Gaussians of vib and ceb, in units of z and of log sd."
    )

    @property
    def used_strength(self) -> float:
        """Return the strength as a number, also where it is `auto`."""
        if self.strength != "auto":
            return self.strength
        return USUAL_STRENGTHS.get(self.name, 1.0)


def check_defence(defence: DefenceSettings) -> None:
    """Refuse a strength that means nothing for the defence it is given to."""
    name, strength = defence.name, defence.used_strength
    if name == "none":
        if strength:
            raise SettingsError(f"defence.strength is {strength}, defence.name 'none': name one")
    elif name == "bottleneck" and (strength < 1 or strength != int(strength)):
        raise SettingsError(
            f"defence.strength is {strength}, must be the number of values sent, 1 or more"
        )
    elif name == "dropout" and not 0 < strength < 1:
        raise SettingsError(
            f"defence.strength is {strength}, must be the chance that a value is dropped, in (0, 1)"
        )
    elif not strength > 0:
        raise SettingsError(f"defence.strength is {strength}, must be above 0 for {name!r}")
