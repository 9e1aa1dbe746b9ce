"""How answers are perturbed, and who attacks."""

import math
from typing import Annotated, Literal

from pydantic import Field

from fedcel.settings.group_base import Group, Off, Positive, PositiveList, part_name, part_words

NOISES = ("laplace", "discrete-laplace", "gaussian")
"""Mechanisms that add noise in proportion to a sensitivity."""
MECHANISMS = (*NOISES, "label-only", "none")


class PrivacySettings(Group):
    """How served logits are perturbed."""

    mechanism: Annotated[str, part_name(MECHANISMS), part_words(MECHANISMS)] = Field(
        "laplace",
        description="laplace, gaussian (OpenDP), discrete-laplace (own), label-only, none, import.",
    )
    epsilon: Positive = Field(4.0, description="Privacy loss of one served answer.")
    delta: float = Field(
        1e-6, gt=0, lt=1, description="Delta of one answer of the mechanism 'gaussian'."
    )
    budget: Positive = Field(100.0, description="Epsilon that a client may spend in all.")
    epsilons: PositiveList = Field(
        "0.5,1,2,4,8", description="Epsilons at which result.json states the utility."
    )
    clip: Positive = Field(
        1.0, description="c: centred logits are clamped to [-c, c], or projected to |.|_1 <= c."
    )
    clip_kind: Literal["clamp", "l1", "probabilities"] = Field(
        "l1", description="What enforces the sensitivity: 2cC, 2c, or 2 on probabilities."
    )
    sensitivity: Positive | Off = Field(
        "none", description="Sensitivity stated by hand, at least the clip's; none: the clip's."
    )


def sensitivity(kind: str, c: float, classes: int, norm: int = 1) -> float:
    """Return the largest L1 distance of two clipped rows, or L2 where `norm` is 2.

    Of `clamp` 2 c classes and 2 c sqrt(classes), of `l1` 2 c and 2 c, of `probabilities` 2 and
    sqrt(2). ValueError says what is wrong.
    """
    if not 0 < c < math.inf:
        raise ValueError(f"c is {c}, must be finite and above 0; try 4")
    found = {
        "clamp": (2 * c * classes, 2 * c * math.sqrt(classes)),
        "l1": (2 * c, 2 * c),
        "probabilities": (2.0, math.sqrt(2)),
    }
    if kind not in found:
        raise ValueError(f"kind is {kind!r}, must be one of {', '.join(found)}")
    return found[kind][norm - 1]


class AttackSettings(Group):
    """Who attacks, and with what."""

    names: str = Field(
        "optimal,decoder,kernel-ridge,logit-inversion",
        description="Attacks or import strings; NAME*M sees M independent answers to each target.",
    )
    knowledge: Literal["held-out", "training-size"] = Field(
        "held-out", description="Auxiliary images: a disjoint set, or the training images."
    )
    budget: Positive = Field(1.0, description="Multiple of each attack's default effort.")
    seeds: int = Field(3, ge=1, description="Attack seeds; each is a row of the results.")
    candidates: int = Field(100, ge=2, description="Images to pick the right one from.")
    targets: int = Field(0, ge=0, description="Targets to rebuild, the first so many; 0: all.")
    batch: int = Field(1, ge=1, description="Images behind one attacked upload of a client.")
    langevin: bool = Field(
        False, description="Add the full temperature's Langevin noise to attacked uploads."
    )
