"""Private answers as settings ask for them, each protecting the INPUT of one query.

Whoever reads an answer learns little: any two inputs give answers whose chances differ by at most
exp(epsilon), up to delta, for each query on its own. Answers to repeated queries add up
(`fedcel.privacy.composition`), and the images a model was trained on are not protected by this.
Where the asker owns the input, it is protected from whoever else reads the answer.
"""

from dataclasses import replace
from functools import lru_cache
from typing import Literal, cast

from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from fedcel import plugins
from fedcel.errors import PluginError, SettingsError
from fedcel.privacy.budget_units import to_granted_micro, to_micro_epsilon
from fedcel.privacy.clip import ClipKind, clip_rows
from fedcel.privacy.discrete_laplace import GridNoise
from fedcel.privacy.epsilon_range import check_epsilon
from fedcel.privacy.label_only import LabelOnly
from fedcel.privacy.mechanism_contract import MECHANISM_CHECKS, MechanismCase
from fedcel.privacy.noise_mechanisms import Gaussian, Laplace
from fedcel.privacy.protocol import Mechanism
from fedcel.settings_table import Kind, Positive

ANSWER_DELTA = 1e-6
"""Delta of one answer at most; so is that of noisy updates."""


class PrivacySettings(Kind, table="privacy", selector="mechanism"):
    """Mechanism of served answers, its price and the budget."""

    mechanism: str = Field("label-only", description="Mechanism that makes answers private.")
    epsilon: Positive = Field(4.0, description="Privacy loss of one served answer.")
    budget: Positive = Field(100.0, description="Total epsilon that a client may spend.")

    def check_rules(self) -> None:
        """Refuse an epsilon out of range, and a budget for not even one answer."""
        budget = to_granted_micro(self.budget, "privacy.budget")
        price = to_micro_epsilon(self.epsilon, "privacy.epsilon")
        try:
            check_epsilon(self.epsilon, self.mechanism, "privacy.epsilon")
        except ValueError as error:
            raise SettingsError(str(error)) from None
        if self.is_private and budget < price:
            raise SettingsError(
                f"privacy.budget is {self.budget:g}, must be at least privacy.epsilon "
                f"({self.epsilon:g}), or not one question is answered; raise it"
            )

    @property
    def is_private(self) -> bool:
        """Whether there is a mechanism."""
        return True

    def build(self, classes: int) -> Mechanism:
        """Build the mechanism for answers of `classes` logits.

        Raises:
            SettingsError: The mechanism is `none`, which protects nothing.
            PluginError: A user's object is no mechanism, or costs more than the settings allow.
        """
        raise NotImplementedError


class LabelOnlyAnswers(PrivacySettings):
    """Labels only, by randomised response."""

    mechanism: Literal["label-only"] = "label-only"

    def build(self, classes: int) -> Mechanism:
        """Build the mechanism."""
        return LabelOnly(self.epsilon, classes)


class ClippedAnswers(PrivacySettings):
    """Clipped logits."""

    clip: Positive = Field(
        1.0, description="c: centred logits are clamped to [-c, c], or projected to |.|_1 <= c."
    )
    clip_kind: ClipKind = Field(
        "l1", description="Rule that enforces the sensitivity: 2cC, 2c, or 2 on probabilities."
    )

    def clip_logits(self, logits: Float[Tensor, "B C"]) -> Float[Tensor, "B C"]:
        """Clip logits (B, C), in double precision; see `clip_rows`."""
        return clip_rows(logits, self.clip_kind, self.clip)


class OpenAnswers(ClippedAnswers):
    """Clipped logits as they are, which protect nothing."""

    mechanism: Literal["none"] = "none"

    @property
    def is_private(self) -> bool:
        """Whether there is a mechanism."""
        return False

    def build(self, classes: int) -> Mechanism:
        """Refuse to answer without a mechanism."""
        raise SettingsError(
            "privacy.mechanism is 'none': answers would not be private; set it to 'label-only', "
            "'laplace', 'discrete-laplace' or 'gaussian'"
        )


class LaplaceAnswers(ClippedAnswers):
    """Clipped logits plus Laplace noise, drawn by OpenDP or, discrete, by the own sampler."""

    mechanism: Literal["laplace", "discrete-laplace"] = "laplace"

    def build(self, classes: int) -> Mechanism:
        """Build the mechanism."""
        noise = Laplace(self.epsilon, classes, clip_kind=self.clip_kind, clip=self.clip)
        if self.mechanism == "laplace":
            return noise
        return replace(noise, name=self.mechanism, disturb=GridNoise())


class GaussianAnswers(ClippedAnswers):
    """Clipped logits plus Gaussian noise, drawn by OpenDP."""

    mechanism: Literal["gaussian"] = "gaussian"

    def build(self, classes: int) -> Mechanism:
        """Build the mechanism."""
        return Gaussian(
            self.epsilon, classes, delta=ANSWER_DELTA, clip_kind=self.clip_kind, clip=self.clip
        )


class OwnAnswers(ClippedAnswers, is_imported=True):
    """Mechanism of a user's own, called with these settings and the number of classes."""

    def build(self, classes: int) -> Mechanism:
        """Build the user's mechanism, once it has kept its contract."""
        _check_own_mechanism(self, classes)
        mechanism = self._make(classes)
        epsilon, delta = mechanism.epsilon, mechanism.delta
        if not (0 < epsilon <= self.epsilon and 0 <= delta <= ANSWER_DELTA):
            raise PluginError(
                f"{self._part} costs epsilon {epsilon} and delta {delta}, must be at most "
                f"privacy.epsilon {self.epsilon} and delta {ANSWER_DELTA:g}"
            )
        return mechanism

    @property
    def _part(self) -> plugins.PartName:
        return plugins.PartName("privacy.mechanism", self.mechanism, "check_mechanism")

    def _make(self, classes: int) -> Mechanism:
        """Return what the user's object makes; its contract says whether it is a mechanism."""
        part = self._part
        return cast(Mechanism, plugins.make_part(part.setting, part.ref, self, classes))


@lru_cache(maxsize=64)
def _check_own_mechanism(privacy: OwnAnswers, classes: int) -> None:
    """Hold a user's mechanism to its contract."""
    case = MechanismCase(lambda: privacy._make(classes), classes)
    plugins.check_contract(privacy._part, MECHANISM_CHECKS, case)


def private_logits(logits: Float[Tensor, "B C"], privacy: PrivacySettings) -> Float[Tensor, "B C"]:
    """Make private answers: clip logits and add the noise of the settings.

    Args:
        logits: (B, C); each row is one answer.
        privacy: Mechanism, epsilon and clip.

    Returns:
        Answers in the dtype of `logits`, not repeatable by a seed. Mechanism `none` returns the
        clipped logits as they are and protects nothing.

    Raises:
        ValueError: Logits are undefined.
    """
    if isinstance(privacy, OpenAnswers):
        return privacy.clip_logits(logits).to(logits.dtype)
    answer = privacy.build(logits.shape[1]).answer(logits)
    return answer.to(logits.dtype)  # rounding an answer costs no privacy
