"""Conditional entropy losses: a small spread of smashed data within each class."""

from collections.abc import Callable

from fedcel.cel.base import ConditionalEntropy, State, Term
from fedcel.cel.cluster import Cluster
from fedcel.cel.gated import Gated
from fedcel.cel.penalty import Penalty, channel, linear, log, penalty_of, shares
from fedcel.cel.plain import Plain
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


def _plain(cel: Cel, penalty: Penalty, classes: int) -> ConditionalEntropy:
    return Plain(penalty, cel.share, classes)


def _cluster(cel: Cel, penalty: Penalty, classes: int) -> ConditionalEntropy:
    return Cluster(penalty, cel.share, classes, cel.clusters, cel.form)


def _gated(cel: Cel, penalty: Penalty, classes: int) -> ConditionalEntropy:
    return Gated(
        penalty, cel.share, classes, cel.attention, cel.floor, cel.hidden, cel.attention_rate
    )


KINDS: dict[str, Callable[[Cel, Penalty, int], ConditionalEntropy]] = {
    "plain": _plain,
    "cluster": _cluster,
    "gated": _gated,
}
"""Each built-in kind's constructor from settings, penalty and number of classes."""


def build(cel: Cel, sigma: float, features: int, classes: int) -> ConditionalEntropy | None:
    """Return the loss that the settings name, for D = `features` values seen through noise sigma.

    None for kind `none`. SettingsError where the penalty needs a sigma above 0.
    """
    if cel.kind == "none":
        return None
    return KINDS[cel.kind](cel, penalty_of(cel, sigma, features), classes)
