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


class Dark(Regression):
    """Returns values outside the images' range."""

    def reconstruct(self, *arguments: Any) -> Tensor:
        return super().reconstruct(*arguments) - 1


class Blind(Regression):
    """Sees nothing of the targets."""

    def reconstruct(self, *arguments: Any) -> Tensor:
        images = super().reconstruct(*arguments)
        return images.mean(0, keepdim=True).expand_as(images)


class Global(Regression):
    """Draws from torch's stream."""

    def reconstruct(self, *arguments: Any) -> Tensor:
        """Return the reconstructions with other noise each time."""
        images = super().reconstruct(*arguments)
        return (images + 0.01 * torch.rand(images.shape)).clamp(0, 1)


class Stale(Regression):
    """Asks twice with the same noise."""

    def reconstruct(self, *arguments: Any) -> Tensor:
        """Ask once more with a fresh copy of the generator."""
        arguments[0].sample(arguments[1].x, torch.Generator().set_state(arguments[4].get_state()))
        return super().reconstruct(*arguments)


class Lazy(Regression):
    """Does the same work for any budget."""

    def reconstruct(self, *arguments: Any) -> Tensor:
        return super().reconstruct(*arguments[:3], 1.0, *arguments[4:])


class Writing(Regression):
    """Overwrites the attacker's images."""

    def reconstruct(self, *arguments: Any) -> Tensor:
        images = super().reconstruct(*arguments)
        arguments[1].x[0] += 1
        return images


SUITE: dict[str, tuple[Callable[[], Mine], str]] = {
    "needs": (lambda: Regression(needs=frozenset({"update"})), "granted; update is not"),
    "range": (Dark, "an image for each target, finite, in \\[0, 1\\]"),
    "error": (Blind, "must be below 0.25 of the mean image's; it is 0.9"),
    "seed": (Global, "the same seed must give the same images"),
    "draws": (Stale, "each query must draw its own noise"),
    "budget": (Lazy, "a larger budget must mean more work"),
    "images": (Writing, "own images must stay as they are"),
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
