"""Lower bound on a mechanism's epsilon, as an attacker measures it, and no guarantee.

Answers about two inputs are told apart by an event; its two frequencies bound epsilon from below
(Jagielski, Ullman and Oprea, NeurIPS 2020, section 4). A bound above the claim proves the claim
wrong; one below it proves nothing.
"""

import math
from collections.abc import Callable

import scipy
import torch
from jaxtyping import Float
from torch import Tensor

from fedcel.privacy.protocol import Mechanism

THRESHOLDS = 32
"""Quantiles of a score tried as thresholds."""


def measure_epsilon(
    mechanism: Mechanism,
    pair: Float[Tensor, "2 C"],
    answers: int = 20_000,
    confidence: float = 0.95,
) -> float:
    """Attack a mechanism: a lower bound on its epsilon at its delta, from answers about two inputs.

    Half of the answers about each input pick the event (a threshold on a score), the other half
    count it; Clopper-Pearson bounds of both frequencies hold together, with this confidence. In
    nats; 0 where nothing is told apart. `pair`: the logits of the two inputs. ValueError on fewer
    than 100 answers about each.
    """
    if answers < 100:
        raise ValueError(f"answers are {answers}, must be 100 or more; try 20000")
    first, second = (mechanism.answer(row.expand(answers, -1)).double() for row in pair)
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
    """Return scores that tell answers about the first input from those about the second.

    The projection on the difference of their means, and the smallest value along it, which is best
    for noise that is independent in each value and pure.
    """
    apart = first.mean(0) - second.mean(0)
    far = apart.abs() >= apart.abs().max() / 4  # others differ only by chance; all where none does
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
