"""Private answers as settings ask for them, each protecting the INPUT of one query.

Whoever reads an answer learns little: any two inputs give answers whose chances differ by at most
exp(epsilon), up to delta, for each query on its own. Answers to repeated queries add up
(`fedcel.privacy.composition`), and the images a model was trained on are not protected by this.
Where the asker owns the input, it is protected from whoever else reads the answer.
"""

from dataclasses import replace
from functools import lru_cache

from jaxtyping import Float
from torch import Tensor

from fedcel import plugins
from fedcel.errors import PluginError
from fedcel.privacy.clip import clip_rows
from fedcel.privacy.discrete_laplace import GridNoise
from fedcel.privacy.label_only import LabelOnly
from fedcel.privacy.mechanism_contract import MECHANISM_CHECKS, MechanismCase
from fedcel.privacy.noise_mechanisms import Gaussian, Laplace
from fedcel.privacy.privacy_settings import NOISES, PrivacySettings, check_private
from fedcel.privacy.protocol import Mechanism


def build_mechanism(privacy: PrivacySettings, classes: int) -> Mechanism:
    """Build the mechanism that settings name.

    Args:
        privacy: Its name, epsilon, delta and clip. A user's `package.module:object` is called with
            (privacy, classes).
        classes: Logits of an answer.

    Returns:
        The mechanism.

    Raises:
        SettingsError: The name is `none`, which protects nothing, or the clip does not enforce the
            stated sensitivity.
        PluginError: The user's object is no mechanism, or costs more than the settings allow.
    """
    check_private(privacy)
    name = privacy.mechanism
    if name == "label-only":
        return LabelOnly(privacy.epsilon, classes)
    if name not in NOISES:
        return _load_mechanism(privacy, classes)
    epsilon, kind, clip = privacy.epsilon, privacy.clip_kind, privacy.clip
    bound = privacy.used_sensitivity(classes)
    if name == "gaussian":
        return Gaussian(
            epsilon, classes, delta=privacy.delta, clip_kind=kind, clip=clip, sensitivity=bound
        )
    mechanism = Laplace(epsilon, classes, clip_kind=kind, clip=clip, sensitivity=bound)
    if name == "discrete-laplace":
        return replace(mechanism, name=name, disturb=GridNoise())
    return mechanism


def _load_mechanism(privacy: PrivacySettings, classes: int) -> Mechanism:
    """Return the mechanism that the user's object makes."""
    part = plugins.PartName("privacy.mechanism", privacy.mechanism, "MechanismContract")
    _check_own_mechanism(part, privacy, classes)
    mechanism = _make_own_mechanism(part, privacy, classes)
    epsilon, delta = mechanism.epsilon, mechanism.delta
    if not (0 < epsilon <= privacy.epsilon and 0 <= delta <= privacy.delta):
        raise PluginError(
            f"{part} costs epsilon {epsilon} and delta {delta}, must be at most privacy.epsilon "
            f"{privacy.epsilon} and privacy.delta {privacy.delta}"
        )
    return mechanism


def _make_own_mechanism(
    part: plugins.PartName, privacy: PrivacySettings, classes: int
) -> Mechanism:
    """Return what the user's object makes, if it is a mechanism."""
    mechanism = plugins.make_part(part.setting, part.ref, privacy, classes)
    if not isinstance(mechanism, Mechanism):
        raise PluginError(
            f"{part} made {mechanism!r}, which lacks name, epsilon, delta, protects, unit or answer"
        )
    return mechanism


@lru_cache(maxsize=64)
def _check_own_mechanism(part: plugins.PartName, privacy: PrivacySettings, classes: int) -> None:
    """Hold a user's mechanism to its contract."""
    case = MechanismCase(lambda: _make_own_mechanism(part, privacy, classes), classes)
    plugins.check_contract(part, MECHANISM_CHECKS, case)


def private_logits(
    logits: Float[Tensor, "B C"], privacy: PrivacySettings, epsilon: float | None = None
) -> Float[Tensor, "B C"]:
    """Answer privately: clip logits and add the noise that an epsilon asks for.

    Args:
        logits: (B, C); each row is one answer.
        privacy: Mechanism, clip and delta.
        epsilon: Privacy loss of each row; None: `privacy.epsilon`.

    Returns:
        Answers in the dtype of `logits`, not repeatable by a seed. Mechanism `none` returns the
        clipped logits as they are and protects nothing.

    Raises:
        ValueError: Logits are undefined.
    """
    if privacy.mechanism == "none":
        return clip_rows(logits, privacy.clip_kind, privacy.clip).to(logits.dtype)
    if epsilon is not None:
        privacy = privacy.model_copy(update={"epsilon": epsilon})
    answer = build_mechanism(privacy, logits.shape[1]).answer(logits)
    return answer.to(logits.dtype)  # rounding an answer costs no privacy
