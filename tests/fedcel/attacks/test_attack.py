"""A user's attack that breaks its contract is refused before a run begins."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from fedcel.attacks import ATTACK_CHECKS, ATTACKS, parse_attacks
from fedcel.errors import ContractError, PluginError
from fedcel.testing.attacks import check_attack, load_digit_targets


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

    def reconstruct(self, watched: Any, images: Any) -> Any:
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
    (named,) = parse_attacks(f"{__name__}:sound")
    assert named[1:] == ("mine", sound, 1)


@pytest.mark.parametrize("name", ATTACKS)
def test_built_in_attacks_hold_it(name: str) -> None:
    """What is asked of others they do."""
    for check in ATTACK_CHECKS:
        check(ATTACKS[name]())


@dataclass(frozen=True)
class Opaque:
    """An observation that grants nothing."""

    name: str
    grants: frozenset[str] = frozenset()

    def sample(self, images: Tensor, generator: torch.Generator) -> Tensor:
        return images.flatten(1)


@pytest.mark.parametrize("name", [name for name in ATTACKS if ATTACKS[name]().needs])
def test_an_attack_without_what_it_needs_is_refused(name: str) -> None:
    attack = ATTACKS[name]()
    seen, needs = Opaque(attack.observes), "|".join(attack.needs)
    with pytest.raises(ValueError, match=f"must grant '({needs})', grants nothing"):
        attack.reconstruct(
            seen, load_digit_targets()[0], torch.zeros(1, 64), 1.0, torch.Generator()
        )


class Regression(Mine):
    """Least squares on the mean of two noisy answers: as strong an attack as the suite wants."""

    def reconstruct(
        self,
        watched: Any,
        images: Any,
        seen: Any,
        effort: float,
        chance: torch.Generator,
        tell: Any = None,
    ) -> Tensor:
        z = (watched.sample(images.x, chance) + watched.sample(images.x, chance)) / 2
        centre, mean = images.x.flatten(1).mean(0), z.mean(0)
        weights = torch.linalg.lstsq(z - mean, images.x.flatten(1) - centre).solution
        steps = int(100 * effort)
        if tell:
            tell(f"step {steps}/{steps}")
        return (centre + (seen - mean) @ weights).clamp(0, 1).view(-1, 1, 8, 8)


def change(attack: Callable[..., Tensor]) -> type[Regression]:
    """Return the regression with one fault: `attack` has the regression and its arguments."""

    class Changed(Regression):
        def reconstruct(self, *arguments: Any) -> Tensor:
            return attack(super().reconstruct, *arguments)

    return Changed


def ask_twice(
    own: Callable[..., Tensor], watched: Any, images: Any, seen: Any, effort: Any, *chance: Any
) -> Tensor:
    """Ask once more with a fresh copy of the generator."""
    watched.sample(images.x, torch.Generator().set_state(chance[0].get_state()))
    return own(watched, images, seen, effort, *chance)


def write(own: Callable[..., Tensor], watched: Any, images: Any, *arguments: Any) -> Tensor:
    """Overwrite the attacker's images."""
    rebuilt = own(watched, images, *arguments)
    images.x[0] += 1
    return rebuilt


def blend(own: Callable[..., Tensor], *arguments: Any) -> Tensor:
    """See nothing of the targets."""
    images = own(*arguments)
    return images.mean(0, keepdim=True).expand_as(images)


SUITE: dict[str, tuple[Callable[[], Mine], str]] = {
    "needs": (lambda: Regression(needs=frozenset({"update"})), "granted; update is not"),
    "range": (
        change(lambda own, *given: own(*given) - 1),
        "an image for each target, finite, in \\[0, 1\\]",
    ),
    "error": (change(blend), "must be below 0.25 of the mean image's; it is 0.9"),
    "seed": (
        change(lambda own, *given: own(*given) * (1 - 0.01 * torch.rand(1))),
        "the same seed must give the same images",
    ),
    "draws": (change(ask_twice), "each query must draw its own noise"),
    "budget": (
        change(lambda own, *given: own(*given[:3], 1.0, *given[4:])),
        "a larger budget must mean more work",
    ),
    "images": (change(write), "own images must stay as they are"),
}


def test_the_regression_holds_the_contract() -> None:
    """Of which the others break a line each."""
    check_attack(Regression)


def test_what_is_no_attack_is_refused_before_its_lines() -> None:
    """An object without the attributes that the lines are about."""
    with pytest.raises(ContractError, match="it must have name, observes, needs and reconstruct"):
        check_attack(object)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", SUITE)
def test_a_line_of_the_contract_is_broken(name: str) -> None:
    """By an attack with one fault."""
    build, words = SUITE[name]
    with pytest.raises(ContractError, match=words):
        check_attack(build)
