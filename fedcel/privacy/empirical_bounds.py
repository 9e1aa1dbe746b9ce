"""What an attacker measures of a mechanism: a lower bound on epsilon, and no guarantee.

Answers about two inputs are told apart by an event; its two frequencies bound epsilon from below
(Jagielski, Ullman and Oprea, NeurIPS 2020, section 4). A bound above the claim proves the claim
wrong; one below it proves nothing. Likewise distances found among inputs never bound a sensitivity.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import scipy
import torch
from jaxtyping import Float
from torch import Tensor

from fedcel.privacy.protocol import Mechanism

THRESHOLDS = 32
"""Quantiles of a score tried as thresholds."""


class EstimatedSensitivity(NamedTuple):
    """The largest distances among a net's answers, without a clip."""

    l1: float
    l2: float
    inputs: int
    label: str = "not a guarantee"

    def __str__(self) -> str:
        """Say what was found and what it is not."""
        found = f"L1 {self.l1:.4g}, L2 {self.l2:.4g} among {self.inputs} inputs"
        return f"estimated sensitivity ({self.label}): {found}; others may lie further apart"


def estimate_sensitivity(
    answers: Callable[[Tensor], Float[Tensor, "N C"]], inputs: Float[Tensor, "N *shape"]
) -> EstimatedSensitivity:
    """Return how far the net's answers to boundary inputs lie apart, in units of a logit.

    A diagnostic that helps to choose `privacy.clip`; only a clip bounds all inputs. ValueError on
    fewer than two inputs, or undefined answers.
    """
    if len(inputs) < 2:
        raise ValueError(f"there are {len(inputs)} inputs, must be 2 or more to be apart")
    with torch.no_grad():
        found = answers(inputs).double()
    if not found.isfinite().all():
        raise ValueError("the net's answers hold NaN or infinity, must be finite; check its inputs")
    l1, l2 = (float(torch.cdist(found, found, p, EXACT).max()) for p in (1.0, 2.0))
    return EstimatedSensitivity(l1, l2, len(inputs))


EXACT = "donot_use_mm_for_euclid_dist"


def measure_epsilon(
    mechanism: Mechanism,
    pair: Float[Tensor, "2 C"],
    answers: int = 20_000,
    confidence: float = 0.95,
) -> float:
    """Return a lower bound on the mechanism's epsilon at its delta, from answers about two inputs.

    Half of the `answers` about each input pick the event (a threshold on a score), the other half
    count it; Clopper-Pearson bounds of both frequencies hold together with `confidence`. 0 where
    nothing is told apart. ValueError on fewer than 100 answers.
    """
    if answers < 100:
        raise ValueError(f"answers are {answers}, must be 100 or more; try 20000")
    first, second = (mechanism.answer(row.expand(answers, -1)) for row in pair)
    half, delta = answers // 2, mechanism.delta
    best, event = -math.inf, None
    for score in distinguishing_scores(first[:half], second[:half]):
        for sign in (1.0, -1.0):
            ours, theirs = sign * score(first[:half]), sign * score(second[:half])
            steps = torch.linspace(0.002, 0.998, THRESHOLDS, dtype=torch.float64)
            for threshold in ours.quantile(steps).tolist():
                found = epsilon_bound(ours >= threshold, theirs >= threshold, delta, confidence)
                if found > best:
                    best, event = found, (score, sign, threshold)
    if event is None:
        return 0.0
    score, sign, threshold = event
    ours, theirs = (sign * score(rows[half:]) >= threshold for rows in (first, second))
    return max(0.0, epsilon_bound(ours, theirs, delta, confidence))


Score = Callable[[Float[Tensor, "N C"]], Float[Tensor, " N"]]


def distinguishing_scores(first: Float[Tensor, "N C"], second: Float[Tensor, "N C"]) -> list[Score]:
    """Return what tells answers about the first input from those about the second.

    The projection on the difference of their means, and the smallest value along it, which is best
    for noise that is independent in each value and pure.
    """
    apart = first.mean(0) - second.mean(0)
    far = apart.abs() > apart.abs().max() / 4  # others differ by chance alone
    return [lambda rows: rows @ apart, lambda rows: (rows * apart.sign())[:, far].amin(1)]


def epsilon_bound(ours: Tensor, theirs: Tensor, delta: float, confidence: float) -> float:
    """Return log((p - delta)/q) for the smallest p and largest q that fit the counts."""
    risk = (1 - confidence) / 2
    hits, count = int(ours.sum()), len(ours)
    others, total = int(theirs.sum()), len(theirs)
    quantile = scipy.stats.beta.ppf  # Clopper and Pearson, Biometrika 1934
    low = float(quantile(risk, hits, count - hits + 1)) if hits else 0.0
    high = float(quantile(1 - risk, others + 1, total - others)) if others < total else 1.0
    return math.log((low - delta) / high) if low > delta else -math.inf
