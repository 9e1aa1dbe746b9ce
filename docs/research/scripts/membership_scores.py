"""Tell from what a federation gives away which images it was trained on: likelihood ratios."""

from math import log
from typing import NamedTuple

import scipy
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

MIN_SHADOWS = 2  # with an image, and without it, for a mean of either
MIN_VARIANCE = 1e-12
BOOTSTRAP_RESAMPLES = 200
THRESHOLDS = 64
"""Quantiles of the scores that are tried as thresholds for an epsilon."""


class Interval(NamedTuple):
    """A number with its 95 % interval by the bootstrap over federations."""

    value: float
    low: float
    high: float


class MembershipScores(NamedTuple):
    """How well members are told from other images."""

    auc: Interval
    """Chance that a member scores above another image."""
    tpr_1: Interval
    """Share of the members that are found where 1 % of the others are called members."""
    tpr_01: Interval
    """The same at 0.1 %."""
    epsilon: float
    """Lower bound on the epsilon of one image that the attack shows, 95 % confidence, as if all
    decisions were independent; no guarantee."""


def scale_confidence(
    log_probabilities: Float[Tensor, "N K"], labels: Int[Tensor, " N"]
) -> Float[Tensor, " N"]:
    """Compute log p_y / (1 - p_y), which is nearly Gaussian over trainings.

    Args:
        log_probabilities: A net's answers, (N, K).
        labels: The right classes y, (N,).

    Returns:
        The scaled confidence, finite however sure an answer is.

    References:
        Carlini et al., IEEE S&P 2022, section IV.C.
    """
    right = log_probabilities.gather(1, labels[:, None])[:, 0]
    wrong = log_probabilities.scatter(1, labels[:, None], -torch.inf).logsumexp(1)
    return right - wrong


def likelihood_ratios(
    targets: Float[Tensor, "T N S"],
    shadows: Float[Tensor, "R N S"],
    is_member: Bool[Tensor, "R N"],
) -> Float[Tensor, "T N"]:
    """Compute how much likelier each image is a member of each target than not.

    Statistics of an image are Gaussian with one mean over the shadows that were trained with it,
    another over those without it, and covariances pooled over images. The score is the log of the
    ratio of both densities. Targets are no shadows: federations that attack each other in turn
    score below chance where there is nothing to find.

    Args:
        targets: S numbers of each image in each of T federations that are attacked.
        shadows: The same of R federations of the attacker's own.
        is_member: Whether a shadow was trained on the image.

    Returns:
        Scores (T, N), in nats.

    Raises:
        ValueError: An image has fewer than two shadows with it, or without it, or a statistic is
            not finite.

    References:
        Carlini et al., Membership Inference Attacks From First Principles, IEEE S&P 2022.
    """
    if not (targets.isfinite().all() and shadows.isfinite().all()):
        raise ValueError("statistics hold NaN or infinity, must be finite: a training diverged")
    members = is_member.sum(0)
    fewest = int(torch.minimum(members, len(is_member) - members).min())
    if fewest < MIN_SHADOWS:
        raise ValueError(
            f"an image has {fewest} shadows with it or without it, must be {MIN_SHADOWS} or more "
            "of each; train more shadows"
        )
    points, values = targets.double(), shadows.double()
    return log_density(points, values, is_member) - log_density(points, values, ~is_member)


def log_density(
    points: Float[Tensor, "T N S"], shadows: Float[Tensor, "R N S"], is_used: Bool[Tensor, "R N"]
) -> Float[Tensor, "T N"]:
    """Return the log-density of each image's points among its used shadows, up to a constant."""
    weight = is_used.double()[:, :, None]
    mean = (weight * shadows).sum(0) / weight.sum(0)
    gap = weight * (shadows - mean)
    freedom = float(is_used.sum()) - is_used.shape[1]
    width = shadows.shape[2]
    covariance = torch.einsum("rns,rnt->st", gap, gap) / freedom
    covariance += MIN_VARIANCE * torch.eye(width, dtype=torch.float64)
    factor = torch.linalg.cholesky(covariance)
    flat = (points - mean).flatten(0, 1)
    standard: Tensor = torch.linalg.solve_triangular(factor, flat.T, upper=False)
    nats: Tensor = -standard.square().sum(0) / 2 - factor.diagonal().log().sum()
    return nats.view(points.shape[:2])


def score_membership(
    scores: Float[Tensor, "T N"], is_member: Bool[Tensor, "T N"], generator: torch.Generator
) -> MembershipScores:
    """Score how well members are told from other images, over all federations together.

    Args:
        scores: Larger for likelier members, (T, N).
        is_member: The truth.
        generator: Draws federations for intervals.

    Returns:
        AUC, true positive rates, and the epsilon that they show.
    """
    count = len(scores)
    measured = [measure_rates(scores, is_member)]
    for _ in range(BOOTSTRAP_RESAMPLES):
        rows = torch.randint(count, (count,), generator=generator)
        measured.append(measure_rates(scores[rows], is_member[rows]))
    table = torch.tensor(measured, dtype=torch.float64)
    low, high = table[1:].quantile(torch.tensor([0.025, 0.975], dtype=torch.float64), dim=0)
    auc, tpr_1, tpr_01 = (
        Interval(*(float(part) for part in row)) for row in torch.stack([table[0], low, high], 1)
    )
    return MembershipScores(auc, tpr_1, tpr_01, bound_epsilon(scores, is_member))


def measure_rates(
    scores: Float[Tensor, "T N"], is_member: Bool[Tensor, "T N"]
) -> tuple[float, float, float]:
    """Return the AUC, and the true positive rates at 1 % and 0.1 % false ones."""
    members, others = scores[is_member], scores[~is_member].sort().values
    below = torch.searchsorted(others, members, side="left")
    not_above = torch.searchsorted(others, members, side="right")
    auc = float((below + not_above).double().mean()) / (2 * len(others))
    rates = []
    for share in (0.01, 0.001):
        threshold = others[len(others) - 1 - int(share * len(others))]
        rates.append(float((members > threshold).double().mean()))
    return auc, rates[0], rates[1]


def bound_epsilon(scores: Float[Tensor, "T N"], is_member: Bool[Tensor, "T N"]) -> float:
    """Bound from below the epsilon at which an attacker could score so well, at delta 0.

    Half of the federations choose the threshold, the others count both rates, whose Clopper-Pearson
    bounds hold together.

    References:
        Jagielski, Ullman and Oprea, NeurIPS 2020, section 4.
    """
    half = max(1, len(scores) // 2)
    chosen, best = 0.0, -1.0
    quantiles = torch.linspace(0, 1, THRESHOLDS + 2, dtype=torch.float64)[1:-1]
    pool = scores[:half].flatten().sort().values
    for threshold in pool[(quantiles * (len(pool) - 1)).long()].tolist():
        ratio = threshold_epsilon(scores[:half], is_member[:half], threshold)
        if ratio > best:
            chosen, best = threshold, ratio
    return max(0.0, threshold_epsilon(scores[half:], is_member[half:], chosen))


def threshold_epsilon(
    scores: Float[Tensor, "T N"], is_member: Bool[Tensor, "T N"], threshold: float
) -> float:
    """Return the larger log-ratio of bounded rates, of calling a member one and another none."""
    members, others = scores[is_member] > threshold, scores[~is_member] > threshold
    if not len(members) or not len(others):
        return 0.0
    called = (int(members.sum()), len(members)), (int(others.sum()), len(others))
    (hits, total), (alarms, strangers) = called
    pairs = (
        (lower_rate(hits, total), upper_rate(alarms, strangers)),
        (lower_rate(strangers - alarms, strangers), upper_rate(total - hits, total)),
    )
    return max(log(low / high) if low > 0 else -torch.inf for low, high in pairs)


def lower_rate(count: int, total: int) -> float:
    """Return the 97.5 % Clopper-Pearson lower bound of a rate."""
    return float(scipy.stats.beta.ppf(0.025, count, total - count + 1)) if count else 0.0


def upper_rate(count: int, total: int) -> float:
    """Return the 97.5 % Clopper-Pearson upper bound of a rate."""
    if count == total:
        return 1.0
    return float(scipy.stats.beta.ppf(0.975, count + 1, total - count))
