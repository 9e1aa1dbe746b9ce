"""A user's attack that breaks its contract is refused before a run begins."""

from dataclasses import dataclass
from typing import Any

import pytest

from fedcel.attacks import ATTACK_CHECKS, ATTACKS, parse_attacks
from fedcel.errors import PluginError


@dataclass(frozen=True)
class Mine:
    """An attack by its fields; it is never carried out here."""

    name: Any = "mine"
    needs: Any = frozenset({"free-queries"})
    observes: Any = "smashed-data"

    def reconstruct(
        self, watched: Any, images: Any, seen: Any, effort: Any, chance: Any, tell: Any = None
    ) -> Any:
        """Return nothing."""


class Short(Mine):
    """Takes too few arguments."""

    def reconstruct(self, watched: Any, images: Any) -> Any:  # type: ignore[override]
        """Return nothing."""


sound, nameless, starred = Mine(), Mine(name=""), Mine(name="mine*4")
listed, misspelt = Mine(needs=["mean"]), Mine(needs=frozenset({"free-querys"}))
elsewhere, short = Mine(observes="smashed-datum"), Short()

BROKEN = {
    "nameless": "its name must be a short text",
    "starred": "without , \\* : or /; is 'mine\\*4'",
    "listed": "needs must be a frozenset of grants .*; is \\['mean'\\]",
    "misspelt": "free-queries, .*; free-querys is none",
    "elsewhere": "observes must be one of smashed-data, private-logits, update; is 'smashed-datum'",
    "short": "reconstruct must take \\(observation, auxiliary, .*too many positional arguments",
}


@pytest.mark.parametrize("name", BROKEN)
def test_an_attack_that_breaks_its_contract_is_refused(name: str) -> None:
    """By setting, import string and the line of the contract."""
    words = f"attack.names '{__name__}:{name}' breaks its contract: .*{BROKEN[name]}"
    with pytest.raises(PluginError, match=words):
        parse_attacks(f"{__name__}:{name}")


def test_a_sound_one_is_let_through() -> None:
    """Arguments may have any names, since they are given by position."""
    assert parse_attacks(f"{__name__}:sound") == [(sound, 1)]


@pytest.mark.parametrize("name", ATTACKS)
def test_built_in_attacks_hold_it(name: str) -> None:
    """What is asked of others they do."""
    for check in ATTACK_CHECKS:
        check(ATTACKS[name]())
