"""Protocol of attacks that reconstruct images, and the base of built-in ones."""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from fedcel.attacks.attack_clock import AttackClock
from fedcel.data import Images
from fedcel.leakage import (
    ARCHITECTURE,
    FIRST_LAYER,
    FREE_QUERIES,
    HEAD,
    LOG_PROB,
    MEAN,
    NOISELESS,
    UPDATE,
    Observation,
)
from fedcel.plugins import require

Progress = Callable[[str], None]
"""Takes a line such as `step 200/2000, loss 0.03`."""
Reconstructions = Float[Tensor, "T C H W"]
"""One image in [0, 1] per target."""
Rebuild = Callable[[Float[Tensor, "T F"]], Float[Tensor, "T C H W"]]
"""A trained attack: messages to images in [0, 1]."""

GRANTS = frozenset(
    {ARCHITECTURE, FIRST_LAYER, FREE_QUERIES, HEAD, LOG_PROB, MEAN, NOISELESS, UPDATE}
)
SURFACES = ("smashed-data", "private-logits", "update")
"""Kinds of observation, as `Attack.observes` names them."""
_ARGUMENTS = ("observation", "auxiliary", "observed", "budget", "generator", "progress")
PROGRESS_LINES = 10  # of a training, about


class OtherClasses(Images):
    """Images of classes that are not the net's: a label says which are alike, not what they are."""

    __slots__ = ()


@runtime_checkable
class Attack(Protocol):
    """An attacker who reconstructs images: implement it to add an attack of your own.

    The attacker has own images and what was observed of the targets, never the targets.
    """

    @property
    def name(self) -> str:
        """The short name of the attack, as rows of results give it."""

    @property
    def needs(self) -> frozenset[str]:
        """The grants without which it cannot run, such as `fedcel.leakage.MEAN`."""

    @property
    def observes(self) -> str:
        """The kind of observation it attacks, such as `smashed-data`."""

    def reconstruct(
        self,
        observation: Observation,
        auxiliary: Images,
        observed: Float[Tensor, "T F"],
        budget: float,
        generator: torch.Generator,
        progress: Progress | None = None,
    ) -> Float[Tensor, "T C H W"]:
        """Reconstruct one image per observed target.

        Called with positional arguments, so that an attack may name them as it likes.

        Args:
            observation: What is attacked, and what it grants.
            auxiliary: The attacker's own images; their labels are classes of the net unless they
                are `OtherClasses`.
            observed: What was seen of each target, (T, F).
            budget: Multiplies the attack's default effort, above 0.
            generator: Decides all its chances.
            progress: Takes lines with the part done, the last one at the end, or None.

        Returns:
            Images (T, C, H, W) in [0, 1], without a gradient.

        Raises:
            ValueError: The observation does not grant what the attack needs.
            DataError: There are too few own images.
        """


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


@dataclass(frozen=True)
class TrainingProgress:
    """Progress of an attack that also takes the learning curve of its training, and has its clock.

    Args:
        show_line: Takes a line.
        clock: Ends the attack's loops when its time is up.
        curve: Is filled by a training: squared error after each epoch, on images held out from it.
    """

    show_line: Progress
    clock: AttackClock = field(default_factory=AttackClock)
    curve: list[float] = field(default_factory=list)

    def __call__(self, line: str) -> None:
        """Take a line."""
        self.show_line(line)


@dataclass(frozen=True)
class Attacker:
    """Arguments of an attack: observation, auxiliary images, budget, random generator."""

    observation: Observation
    auxiliary: Images
    budget: float
    generator: torch.Generator
    progress: Progress | None = None

    @property
    def curve(self) -> list[float]:
        """Errors after each epoch of a training, to be added to."""
        return self.progress.curve if isinstance(self.progress, TrainingProgress) else []

    @cached_property
    def clock(self) -> AttackClock:
        """Clock that the attack takes its steps from."""
        return self.progress.clock if isinstance(self.progress, TrainingProgress) else AttackClock()

    def scale(self, effort: int) -> int:
        """Return `budget` times a number of steps, at least one."""
        return max(1, round(effort * self.budget))

    def report(self, unit: str, done: int, total: int, detail: str) -> None:
        """Tell `unit done/total, detail` about ten times in all, the last time at the end."""
        if self.progress and (done % max(1, total // PROGRESS_LINES) == 0 or done == total):
            self.progress(f"{unit} {done}/{total}, {detail}")


class BaseAttack(ABC):
    """A built-in attack: `reconstruct` is that of `Attack`, what differs is in `invert`."""

    name: str
    needs: frozenset[str] = frozenset()
    observes: str = "smashed-data"

    def reconstruct(
        self,
        observation: Observation,
        auxiliary: Images,
        observed: Float[Tensor, "T F"],
        budget: float,
        generator: torch.Generator,
        progress: Progress | None = None,
    ) -> Reconstructions:
        """Reconstruct one image per observed target; see `Attack.reconstruct`."""
        if missing := sorted(self.needs - observation.grants):
            granted = ", ".join(sorted(observation.grants)) or "nothing"
            raise ValueError(f"{observation.name!r} must grant {missing[0]!r}, grants {granted}")
        return self.invert(Attacker(observation, auxiliary, budget, generator, progress), observed)

    @abstractmethod
    def invert(self, attacker: Attacker, observed: Float[Tensor, "T F"]) -> Reconstructions:
        """Return one image in [0, 1] per observed target."""
