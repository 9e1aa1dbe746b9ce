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

BOUNDARY_HALVINGS = 20
"""After so many a millionth of the way is left between the two sides of a boundary."""
THRESHOLDS = 32
"""Quantiles of a score tried as thresholds."""


class EstimatedSensitivity(NamedTuple):
    """The largest distances among a net's answers, without a clip.

    Attributes:
        l1: Largest L1 distance, in units of a logit.
        l2: Largest L2 distance.
        inputs: How many were compared.
        label: What the figures are not.
    """

    l1: float
    l2: float
    inputs: int
    label: str = "not a guarantee"

    def __str__(self) -> str:
        """Return the distances, and what they are not, in words."""
        return (
            f"among {self.inputs} inputs two answers lie up to {self.l1:.4g} apart in L1 and "
            f"{self.l2:.4g} in L2; this is {self.label}, others may lie further apart"
        )


def estimate_sensitivity(
    answers: Callable[[Tensor], Float[Tensor, "N C"]], inputs: Float[Tensor, "N *shape"]
) -> EstimatedSensitivity:
    """Measure how far apart a net's answers to some inputs lie: a diagnostic, not a guarantee.

    It helps to choose `privacy.clip`; only a clip bounds all inputs.

    Args:
        answers: The net: inputs to logits (N, C).
        inputs: (N, ...), two or more, best at the boundary of what is allowed.

    Returns:
        The largest distances, in units of a logit.

    Raises:
        ValueError: There are fewer than two inputs, or answers are undefined.
    """
    if len(inputs) < 2:
        raise ValueError(f"there are {len(inputs)} inputs, must be 2 or more to be apart")
    with torch.no_grad():
        logits = answers(inputs).double()
    if not logits.isfinite().all():
        raise ValueError("the net's answers hold NaN or infinity, must be finite; check its inputs")
    l1, l2 = (float(torch.cdist(logits, logits, p, EXACT).max()) for p in (1.0, 2.0))
    return EstimatedSensitivity(l1, l2, len(inputs))


def push_to_boundary(
    answers: Callable[[Tensor], Float[Tensor, "N C"]], inputs: Float[Tensor, "N *shape"]
) -> Float[Tensor, "M *shape"]:
    """Push inputs to where a net's top class changes: there answers are said to differ most.

    Each input is moved straight towards the first one that has another top class, by halving the
    way; both sides of the boundary are kept. Values stay between those of the two inputs, so that
    images stay images.

    Args:
        answers: The net: inputs to logits (N, C).
        inputs: (N, ...).

    Returns:
        Two inputs for each pushed one, (M, ...), M at most 2 N; none where all have one top class.
    """
    with torch.no_grad():
        top = answers(inputs).argmax(1)
        differs = top[:, None] != top[None, :]
        start = differs.any(1).nonzero().flatten()
        inside, beyond = inputs[start], inputs[differs[start].double().argmax(1)]
        for _ in range(BOUNDARY_HALVINGS):
            middle = (inside + beyond) / 2
            is_same = answers(middle).argmax(1) == top[start]
            keep = is_same.view(-1, *[1] * (inputs.dim() - 1))
            inside, beyond = torch.where(keep, middle, inside), torch.where(keep, beyond, middle)
    return torch.cat([inside, beyond])


EXACT = "donot_use_mm_for_euclid_dist"


def measure_epsilon(
    mechanism: Mechanism,
    pair: Float[Tensor, "2 C"],
    answers: int = 20_000,
    confidence: float = 0.95,
) -> float:
    """Attack a mechanism: a lower bound on its epsilon at its delta, from answers about two inputs.

    Half of the answers about each input pick the event (a threshold on a score), the other half
    count it; Clopper-Pearson bounds of both frequencies hold together.

    Args:
        mechanism: What gives the answers.
        pair: (2, C), the logits of the two inputs.
        answers: Drawn about each input, 100 or more.
        confidence: Probability with which the bound holds, in (0, 1).

    Returns:
        The bound, in nats; 0 where nothing is told apart.

    Raises:
        ValueError: Fewer than 100 answers.

    References:
        Jagielski, Ullman and Oprea, NeurIPS 2020, section 4.
    """
    if answers < 100:
        raise ValueError(f"answers are {answers}, must be 100 or more; try 20000")
    first, second = (mechanism.answer(row.expand(answers, -1)) for row in pair)
    half = answers // 2
    delta = mechanism.delta
    best_bound = -math.inf
    event = None
    for score in distinguishing_scores(first[:half], second[:half]):
        for sign in (1.0, -1.0):
            scores = sign * score(first[:half])
            other_scores = sign * score(second[:half])
            steps = torch.linspace(0.002, 0.998, THRESHOLDS, dtype=torch.float64)
            for threshold in scores.quantile(steps).tolist():
                bound = epsilon_bound(
                    scores >= threshold, other_scores >= threshold, delta, confidence
                )
                if bound > best_bound:
                    best_bound, event = bound, (score, sign, threshold)
    if event is None:
        return 0.0
    score, sign, threshold = event
    hits, other_hits = (sign * score(rows[half:]) >= threshold for rows in (first, second))
    return max(0.0, epsilon_bound(hits, other_hits, delta, confidence))


ScoreFunction = Callable[[Float[Tensor, "N C"]], Float[Tensor, " N"]]


def distinguishing_scores(
    first: Float[Tensor, "N C"], second: Float[Tensor, "N C"]
) -> list[ScoreFunction]:
    """Return what tells answers about the first input from those about the second.

    The projection on the difference of their means, and the smallest value along it, which is best
    for noise that is independent in each value and pure.
    """
    apart = first.mean(0) - second.mean(0)
    far = apart.abs() >= apart.abs().max() / 4  # others differ by chance alone; all where none does
    return [lambda rows: rows @ apart, lambda rows: (rows * apart.sign())[:, far].amin(1)]


def epsilon_bound(hits: Tensor, other_hits: Tensor, delta: float, confidence: float) -> float:
    """Return log((p - delta)/q) for the smallest p and largest q that fit the counts.

    `hits` and `other_hits` say which answers about either input show the event.
    """
    risk = (1 - confidence) / 2
    k, n = int(hits.sum()), len(hits)
    other_k, other_n = int(other_hits.sum()), len(other_hits)
    quantile = scipy.stats.beta.ppf  # Clopper and Pearson, Biometrika 1934
    low = float(quantile(risk, k, n - k + 1)) if k else 0.0
    high = 1.0
    if other_k < other_n:
        high = float(quantile(1 - risk, other_k + 1, other_n - other_k))
    return math.log((low - delta) / high) if low > delta else -math.inf
