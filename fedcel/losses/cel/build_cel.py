"""The loss that settings name."""

from collections.abc import Callable
from functools import lru_cache

from fedcel import plugins
from fedcel.errors import PluginError, SettingsError
from fedcel.losses.cel.cluster import Cluster
from fedcel.losses.cel.contract import CELCase
from fedcel.losses.cel.gated import Gated
from fedcel.losses.cel.hybrid import Hybrid
from fedcel.losses.cel.mutual_information import MutualInformation
from fedcel.losses.cel.plain import Plain
from fedcel.losses.cel.spread_penalties import Penalty, build_penalty, linear_penalty
from fedcel.losses.contract import LOSS_CHECKS, guard_loss
from fedcel.losses.protocol import ConditionalEntropy
from fedcel.nets import SplitNet
from fedcel.settings import CelSettings


def _build_plain(cel: CelSettings, sigma: float, features: int, classes: int) -> Plain:
    return Plain(build_penalty(cel, sigma, features), cel.share, classes)


def _build_cluster(cel: CelSettings, sigma: float, features: int, classes: int) -> Cluster:
    return Cluster(
        build_penalty(cel, sigma, features),
        cel.share,
        classes,
        clusters=cel.used_clusters,
        form=cel.form,
        clustering=cel.clustering,
        reservoir=cel.reservoir,
        outlier=None if cel.outlier == "none" else cel.outlier,
        outlier_rule=cel.outlier_rule,
    )


def _build_gated(cel: CelSettings, sigma: float, features: int, classes: int) -> Gated:
    return Gated(
        build_penalty(cel, sigma, features),
        cel.share,
        classes,
        features,
        attention=cel.attention,
        floor=cel.floor,
        hidden=cel.hidden,
        rate=cel.attention_rate,
        entropy=cel.entropy,
        stepping=cel.attention_step,
    )


def _build_hybrid(cel: CelSettings, sigma: float, features: int, classes: int) -> Hybrid:
    parts = cel, sigma, features, classes
    return Hybrid(_build_gated(*parts), _build_cluster(*parts))


def _build_mutual_information(
    cel: CelSettings, sigma: float, features: int, classes: int
) -> MutualInformation:
    return MutualInformation(sigma, cel.share, classes, cel.bound)


CEL_BUILDERS: dict[str, Callable[[CelSettings, float, int, int], ConditionalEntropy]] = {
    "plain": _build_plain,
    "cluster": _build_cluster,
    "gated": _build_gated,
    "hybrid": _build_hybrid,
    "mutual-information": _build_mutual_information,
}
"""Builder of each kind of loss, from settings, sigma, D and the number of classes."""


def build_cel(
    cel: CelSettings, sigma: float, features: int, classes: int
) -> ConditionalEntropy | None:
    """Make the conditional entropy loss that the settings name.

    Args:
        cel: The settings group `cel`. A user's kind `package.module:object` is called with
            (settings, penalty, D, classes).
        sigma: Standard deviation of the noise at the cut, in units of z.
        features: D, the number of features.
        classes: C.

    Returns:
        The loss, or None for kind `none`.

    Raises:
        SettingsError: The loss needs a sigma above 0.
        PluginError: The user's object makes no such loss, or one that breaks its contract.
    """
    if cel.kind == "none":
        return None
    if cel.kind in CEL_BUILDERS:
        return CEL_BUILDERS[cel.kind](cel, sigma, features, classes)
    part = plugins.PartName("cel.kind", cel.kind, "CELContract")
    # A threshold that moves from round to round is no reason to hold the loss to it again.
    fixed = {} if cel.threshold == "none" else {"threshold": 1.0}
    _check_own_cel(part, cel.model_copy(update=fixed), features, classes)
    penalty = build_penalty(cel, sigma, features)
    return guard_loss(part, _make_own_cel(part, cel, penalty, features=features, classes=classes))


def build_net_cel(cel: CelSettings, net: SplitNet, classes: int) -> ConditionalEntropy | None:
    """Make the loss that the settings name for the features of a net, as a client uses it.

    Args:
        cel: The settings group `cel`.
        net: The net; its cut says the noise.
        classes: C.

    Returns:
        The loss of the features that it sees, which may be the channels' means; None for `none`.

    Raises:
        SettingsError: The loss needs a sigma above 0, or positions that the features do not have.
        PluginError: The user's object makes no such loss, or one that breaks its contract.
    """
    return build_cel(cel, net.cut.sigma, count_seen_features(cel, net), classes)


def count_seen_features(cel: CelSettings, net: SplitNet) -> int:
    """Count the values of an image that the loss sees.

    Args:
        cel: The settings group `cel`.
        net: The net.

    Returns:
        D, or the channels where it sees their means.

    Raises:
        SettingsError: The features have no positions to average over.
    """
    if cel.kind == "none" or cel.pool == "flatten":
        return net.features
    if net.positions == 1:
        raise SettingsError(
            f"cel.pool is {cel.pool!r}, and the encoder has no `positions` above 1: say how many "
            "values of z each channel has, or set cel.pool to 'flatten'"
        )
    return net.features // net.positions


def _make_own_cel(
    part: plugins.PartName, cel: CelSettings, penalty: Penalty, *, features: int, classes: int
) -> ConditionalEntropy:
    """Return the loss that the user's object makes."""
    loss = plugins.make_part(part.setting, part.ref, cel, penalty, features, classes)
    if not isinstance(loss, ConditionalEntropy):
        raise PluginError(f"{part} made {loss!r}, which lacks refresh, loss or step")
    return loss


@lru_cache(maxsize=16)
def _check_own_cel(part: plugins.PartName, cel: CelSettings, features: int, classes: int) -> None:
    """Hold a user's loss to its contract, under a penalty that is nowhere flat."""

    def build() -> ConditionalEntropy:
        return _make_own_cel(part, cel, linear_penalty, features=features, classes=classes)

    plugins.check_contract(part, LOSS_CHECKS, CELCase(build, features, classes))
