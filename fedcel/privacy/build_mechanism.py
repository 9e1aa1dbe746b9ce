"""Private answers: each protects the INPUT of one query against whoever reads the answer.

Any two inputs give answers whose chances differ by at most exp(epsilon), up to delta, for each
query on its own: answers to repeated queries add up (`fedcel.privacy.composition`), and the images
a model was trained on are not protected by this. Where the asker owns the input, it is protected
from whoever else reads the answer.
"""

from jaxtyping import Float
from torch import Tensor

from fedcel import plugins
from fedcel.errors import PluginError, SettingsError
from fedcel.privacy.clip import clip_rows
from fedcel.privacy.discrete_laplace import add_grid_noise
from fedcel.privacy.label_only import LabelOnly
from fedcel.privacy.noise_mechanisms import Gaussian, Laplace, perturb_rows
from fedcel.privacy.protocol import Mechanism
from fedcel.settings import NOISES, PrivacySettings, check_sensitivity


def build_mechanism(privacy: PrivacySettings, classes: int) -> Mechanism:
    """Return the mechanism that the settings name, for answers of `classes` logits.

    A user's `package.module:object` takes (settings, classes). SettingsError for `none`, which
    protects nothing, and for a stated sensitivity that the clip does not enforce; PluginError where
    the user's object is no mechanism or costs more than the settings allow.
    """
    name, epsilon, kind = privacy.mechanism, privacy.epsilon, privacy.clip_kind
    if name == "none":
        raise SettingsError(
            "privacy.mechanism is 'none', this answer must be private: set 'laplace', "
            "'discrete-laplace', 'gaussian' or 'label-only'"
        )
    if name == "label-only":
        return LabelOnly(epsilon, classes)
    if name not in NOISES:
        return _loaded(privacy, classes)
    bound = check_sensitivity(privacy, classes)
    if name == "gaussian":
        return Gaussian(epsilon, privacy.delta, classes, kind, privacy.clip, bound)
    disturb = add_grid_noise if name == "discrete-laplace" else perturb_rows
    return Laplace(epsilon, classes, kind, privacy.clip, bound, name, disturb)


def _loaded(privacy: PrivacySettings, classes: int) -> Mechanism:
    """Return the mechanism that the user's object makes."""
    name = privacy.mechanism
    made = plugins.make_part("privacy.mechanism", name, privacy, classes)
    if not isinstance(made, Mechanism):
        raise PluginError(
            f"privacy.mechanism {name!r} made {made!r}, which lacks name, epsilon, delta, "
            "protects, unit or answer"
        )
    if not (0 < made.epsilon <= privacy.epsilon and 0 <= made.delta <= privacy.delta):
        raise PluginError(
            f"privacy.mechanism {name!r} costs epsilon {made.epsilon} and delta {made.delta}, must "
            f"be at most privacy.epsilon {privacy.epsilon} and privacy.delta {privacy.delta}"
        )
    return made


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
