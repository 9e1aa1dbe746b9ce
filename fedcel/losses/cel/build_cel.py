"""The loss that settings name."""

from collections.abc import Callable

from fedcel import plugins
from fedcel.errors import PluginError
from fedcel.losses.cel.cluster import Cluster
from fedcel.losses.cel.gated import Gated
from fedcel.losses.cel.hybrid import Hybrid
from fedcel.losses.cel.mutual_information import MutualInformation
from fedcel.losses.cel.penalties import (
    build_penalty,
)
from fedcel.losses.cel.plain import Plain
from fedcel.losses.cel.protocol import ConditionalEntropy
from fedcel.settings import CelSettings


def _plain(cel: CelSettings, sigma: float, features: int, classes: int) -> Plain:
    return Plain(build_penalty(cel, sigma, features), cel.share, classes)


def _cluster(cel: CelSettings, sigma: float, features: int, classes: int) -> Cluster:
    return Cluster(
        build_penalty(cel, sigma, features),
        cel.share,
        classes,
        cel.used_clusters,
        cel.form,
        cel.clustering,
        cel.reservoir,
        None if cel.outlier == "none" else cel.outlier,
        sigma,
    )


def _gated(cel: CelSettings, sigma: float, features: int, classes: int) -> Gated:
    return Gated(
        build_penalty(cel, sigma, features),
        cel.share,
        classes,
        features,
        cel.attention,
        cel.floor,
        cel.hidden,
        cel.attention_rate,
        cel.entropy,
    )


def _hybrid(cel: CelSettings, sigma: float, features: int, classes: int) -> Hybrid:
    return Hybrid(_gated(cel, sigma, features, classes), _cluster(cel, sigma, features, classes))


def _information(cel: CelSettings, sigma: float, features: int, classes: int) -> MutualInformation:
    return MutualInformation(sigma, cel.share, classes, cel.bound)


KINDS: dict[str, Callable[[CelSettings, float, int, int], ConditionalEntropy]] = {
    "plain": _plain,
    "cluster": _cluster,
    "gated": _gated,
    "hybrid": _hybrid,
    "mutual-information": _information,
}
"""Each built-in kind's constructor from settings, sigma, D and number of classes."""


def build_cel(
    cel: CelSettings, sigma: float, features: int, classes: int
) -> ConditionalEntropy | None:
    """Return the loss that the settings name, for D = `features` values seen through noise sigma.

    None for kind `none`. A user's kind `package.module:object` takes (settings, penalty, D,
    classes). SettingsError where the loss needs a sigma above 0, PluginError where the user's
    object is no such loss.
    """
    if cel.kind == "none":
        return None
    if cel.kind in KINDS:
        return KINDS[cel.kind](cel, sigma, features, classes)
    return _loaded(cel, sigma, features, classes)


def _loaded(cel: CelSettings, sigma: float, features: int, classes: int) -> ConditionalEntropy:
    """Return the loss that the user's object makes."""
    penalty = build_penalty(cel, sigma, features)
    made = plugins.make_part("cel.kind", cel.kind, cel, penalty, features, classes)
    if not isinstance(made, ConditionalEntropy):
        raise PluginError(f"cel.kind {cel.kind!r} made {made!r}, which lacks refresh, loss or step")
    return made
