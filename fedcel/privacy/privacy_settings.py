"""Settings of private answers, and what they must fulfil together."""

from typing import Annotated

from pydantic import Field

from fedcel.errors import SettingsError
from fedcel.options import (
    Fraction,
    Off,
    Options,
    Positive,
    PositiveList,
    part_name,
    part_words,
)
from fedcel.privacy import (
    ClipKind,
    check_epsilon,
    noise_sensitivity,
    to_granted_micro,
    to_micro_epsilon,
)

NOISES = ("laplace", "discrete-laplace", "gaussian")
"""Mechanisms that add noise in proportion to a sensitivity."""
MECHANISMS = (*NOISES, "label-only", "none")


class PrivacySettings(Options):
    """How served logits are perturbed."""

    mechanism: Annotated[str, part_name(MECHANISMS), part_words(MECHANISMS)] = Field(
        "label-only",
        description="label-only, laplace, gaussian (OpenDP), discrete-laplace (own), none, import.",
    )
    epsilon: Positive = Field(4.0, description="Privacy loss of one served answer.")
    delta: Fraction = Field(1e-6, description="Delta of one answer of the mechanism 'gaussian'.")
    budget: Positive = Field(100.0, description="Epsilon that a client may spend in all.")
    epsilons: PositiveList = Field(
        "0.5,1,2,4,8", description="Epsilons at which result.json states the utility."
    )
    clip: Positive = Field(
        1.0, description="c: centred logits are clamped to [-c, c], or projected to |.|_1 <= c."
    )
    clip_kind: ClipKind = Field(
        "l1", description="What enforces the sensitivity: 2cC, 2c, or 2 on probabilities."
    )
    sensitivity: Positive | Off = Field(
        "none", description="Sensitivity stated by hand, at least the clip's; none: the clip's."
    )

    def used_sensitivity(self, classes: int) -> float:
        """Return the sensitivity to add noise for: L2 for `gaussian`, else L1.

        Args:
            classes: Values of an answer.

        Raises:
            SettingsError: One is stated below what the clip enforces for so many classes.
        """
        stated = None if self.sensitivity == "none" else self.sensitivity
        norm = 2 if self.mechanism == "gaussian" else 1
        return noise_sensitivity(self.clip_kind, self.clip, classes, norm, stated=stated)


def check_private(privacy: PrivacySettings) -> None:
    """Refuse to answer without a mechanism.

    Args:
        privacy: The settings of the answers' privacy.

    Raises:
        SettingsError: The mechanism is `none`.
    """
    if privacy.mechanism == "none":
        raise SettingsError(
            "privacy.mechanism is 'none': answers would not be private; set it to "
            f"{', '.join(map(repr, NOISES))} or 'label-only'"
        )


def is_clip_unused(privacy: PrivacySettings) -> bool:
    """Say whether a clip was chosen that the mechanism does not use."""
    default = PrivacySettings()
    chosen = (privacy.clip, privacy.clip_kind) != (default.clip, default.clip_kind)
    return privacy.mechanism == "label-only" and chosen


def check_privacy(privacy: PrivacySettings) -> None:
    """Refuse a budget for not even one answer, and a sensitivity that nothing enforces."""
    try:
        budget, price = (
            to_granted_micro(privacy.budget, "privacy.budget"),
            to_micro_epsilon(privacy.epsilon, "privacy.epsilon"),
        )
    except ValueError as error:
        raise SettingsError(str(error)) from None
    if privacy.mechanism != "none" and budget < price:
        raise SettingsError(
            f"privacy.budget is {privacy.budget:g}, must be at least privacy.epsilon "
            f"({privacy.epsilon:g}), or not one question is answered; raise it"
        )
    for key, texts in (("epsilon", str(privacy.epsilon)), ("epsilons", privacy.epsilons)):
        for epsilon in map(float, texts.split(",")):
            try:
                check_epsilon(epsilon, privacy.mechanism, f"privacy.{key}")
            except ValueError as error:
                raise SettingsError(str(error)) from None
    if privacy.mechanism in NOISES:
        privacy.used_sensitivity(2)
    elif privacy.sensitivity != "none":
        raise SettingsError(
            f"privacy.sensitivity is {privacy.sensitivity:g}, only {', '.join(NOISES)} add noise "
            f"in proportion to it, privacy.mechanism is {privacy.mechanism!r}; set it to 'none', "
            "or privacy.mechanism to 'laplace'"
        )
