"""The short form of the contract of attacks, held before a run begins."""

import inspect
from collections.abc import Callable

from fedcel.attacks.protocol import Attack
from fedcel.leakage import (
    ARCHITECTURE,
    FIRST_LAYER,
    FREE_QUERIES,
    HEAD,
    LOG_PROB,
    LOGITS,
    MEAN,
    NOISELESS,
    UPDATE,
)
from fedcel.plugins import require

GRANTS = frozenset(
    {ARCHITECTURE, FIRST_LAYER, FREE_QUERIES, HEAD, LOGITS, LOG_PROB, MEAN, NOISELESS, UPDATE}
)
SURFACES = ("smashed-data", "private-logits", "update")
"""What can be observed, as `Attack.observes` names it."""
_ARGUMENTS = ("observation", "auxiliary", "observed", "budget", "generator", "progress")


def _check_name(attack: Attack) -> None:
    line = "its name must be a short text, by which rows of results call it"
    require(isinstance(attack.name, str) and bool(attack.name), f"{line}; is {attack.name!r:.60}")
    require(not set(attack.name) & set(",*:/"), f"{line}, without , * : or /; is {attack.name!r}")


def _check_needs(attack: Attack) -> None:
    names = ", ".join(sorted(GRANTS))
    line = f"needs must be a frozenset of grants of fedcel.leakage ({names})"
    require(isinstance(attack.needs, frozenset), f"{line}; is {attack.needs!r:.60}")
    unknown = sorted(map(str, attack.needs - GRANTS))
    require(not unknown, f"{line}; {', '.join(unknown)} is none")


def _check_surface(attack: Attack) -> None:
    line = f"observes must be one of {', '.join(SURFACES)}"
    require(attack.observes in SURFACES, f"{line}; is {attack.observes!r:.60}")


def _check_signature(attack: Attack) -> None:
    line = f"reconstruct must take ({', '.join(_ARGUMENTS)}) by position"
    try:
        inspect.signature(attack.reconstruct).bind(*_ARGUMENTS)
    except TypeError as error:
        require(False, f"{line}; {error}")


ATTACK_CHECKS: tuple[Callable[[Attack], None], ...] = (
    _check_name,
    _check_needs,
    _check_surface,
    _check_signature,
)
"""Each raises ContractError where a line of the contract does not hold."""
