"""Conditional entropy losses: a small spread of smashed data within each class."""

from collections.abc import Callable

from fedcel import plugins
from fedcel.cel.base import ConditionalEntropy, State, Term
from fedcel.cel.cluster import Cluster
from fedcel.cel.gated import Gated
from fedcel.cel.penalty import Penalty, channel, linear, log, penalty_of, shares
from fedcel.cel.plain import Plain
from fedcel.errors import PluginError
from fedcel.settings_groups import Cel

__all__ = [
    "KINDS",
    "Cluster",
    "ConditionalEntropy",
    "Gated",
    "Penalty",
    "Plain",
    "State",
    "Term",
    "build",
    "channel",
    "linear",
    "log",
    "penalty_of",
    "shares",
]


def _plain(cel: Cel, penalty: Penalty, features: int, classes: int) -> ConditionalEntropy:
    return Plain(penalty, cel.share, classes)


def _cluster(cel: Cel, penalty: Penalty, features: int, classes: int) -> ConditionalEntropy:
    return Cluster(penalty, cel.share, classes, cel.clusters, cel.form)


def _gated(cel: Cel, penalty: Penalty, features: int, classes: int) -> ConditionalEntropy:
    return Gated(
        penalty,
        cel.share,
        classes,
        features,
        cel.attention,
        cel.floor,
        cel.hidden,
        cel.attention_rate,
    )


KINDS: dict[str, Callable[[Cel, Penalty, int, int], ConditionalEntropy]] = {
    "plain": _plain,
    "cluster": _cluster,
    "gated": _gated,
}
"""Each built-in kind's constructor from settings, penalty, D and number of classes."""


def build(cel: Cel, sigma: float, features: int, classes: int) -> ConditionalEntropy | None:
    """Return the loss that the settings name, for D = `features` values seen through noise sigma.

    None for kind `none`. A user's kind `package.module:object` takes (settings, penalty, D,
    classes). SettingsError where the penalty needs a sigma above 0, PluginError where the user's
    object is no such loss.
    """
    if cel.kind == "none":
        return None
    make = KINDS.get(cel.kind) or plugins.load(cel.kind)
    if not callable(make):
        raise PluginError(f"cel.kind {cel.kind!r} cannot be called")
    made = make(cel, penalty_of(cel, sigma, features), features, classes)
    if not isinstance(made, ConditionalEntropy):
        raise PluginError(f"cel.kind {cel.kind!r} made {made!r}, which lacks refresh, loss or step")
    return made
