"""Upper bounds on what smashed data can tell, from their spread alone."""

import warnings
from collections.abc import Sequence
from math import log, log2
from typing import NamedTuple

import numpy as np
import scipy
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from fedcel.errors import NetError

CLUSTERS = (1, 2, 5, 10, 20)  # tried for all images together
CLUSTERS_OF_CLASS = (1, 2, 5)
Codes = NDArray[np.float64]
Groups = NDArray[np.int64]


class Certificate(NamedTuple):
    """Upper bounds for one message about an image drawn uniformly from the given ones.

    They hold for any attacker and these images' codes, not for a population. Bits that are measured
    of the same codes may lie above by the chance of the noise drawn, never by more: see
    `fedcel.attacks.contradictions`. At sigma 0 nothing is certified: `clusters` is 0 and the bounds
    are the caps, all there is to know.
    """

    bits: float
    """At least I(image; message)."""
    bits_within_class: float
    """At least I(image; message | label)."""
    identification: float
    """At least the chance to pick the right one of `candidates` images (Fano)."""
    candidates: int
    clusters: int
    """Groups of the partition that gave `bits`."""


def certificate(
    z: Float[Tensor, "M D"], y: Int[Tensor, " M"], sigma: float, candidates: int = 100
) -> Certificate:
    """Bound from above what messages tell about these images, whoever attacks.

    The images are split into groups k, by a diagonal Gaussian mixture or by label; with shares
    pi_k and covariances S_k, I(image; message) <= H(pi) + sum_k pi_k min(log M_k,
    1/2 log det(1 + S_k / sigma^2)), because a Gaussian has the largest entropy of its covariance
    and a group has no more than log M_k to tell. It holds for every partition, a badly fitted one
    too, so the least over several is returned.

    Args:
        z: Features of the images, (M, D).
        y: Their labels, (M,).
        sigma: Standard deviation of the Gaussian noise at the cut, in units of z.
        candidates: Images among which the attacker looks for the right one.

    Returns:
        The bounds in bits, and on identification.

    Raises:
        NetError: z is not finite.
        ValueError: sigma is negative, or there is no image.

    References:
        Cover and Thomas, Elements of Information Theory, 2006, theorem 8.6.5.
    """
    if sigma < 0:
        raise ValueError(f"sigma is {sigma}, must be at least 0")
    if not len(y):
        raise ValueError("0 codes are certified, must be 1 or more; raise data.test")
    if not z.isfinite().all():
        raise NetError("smashed data hold NaN or infinity; lower local.rate")
    count = len(y)
    among = min(candidates, count)
    labels = y.numpy().astype(np.int64)
    rows = [labels == label for label in np.unique(labels)]
    if sigma == 0:
        within = sum(int(row.sum()) * log2(row.sum()) for row in rows) / count
        return Certificate(log2(count), within, 1.0, among, 0)
    codes = z.double().numpy()
    tried = sorted({*CLUSTERS, len(rows)})
    nats, clusters = least_bound(codes, sigma, [*find_partitions(codes, tried), labels])
    within = 0.0
    for row in rows:
        own = codes[row]
        within += (
            len(own) / count * least_bound(own, sigma, find_partitions(own, CLUSTERS_OF_CLASS))[0]
        )
    return Certificate(nats / log(2), within / log(2), fano_bound(nats, among), among, clusters)


def find_partitions(codes: Codes, clusters: Sequence[int]) -> list[Groups]:
    """Return one grouping of the codes for each number of clusters that is below their number."""
    from sklearn.exceptions import ConvergenceWarning  # a second that most commands need not wait
    from sklearn.mixture import GaussianMixture

    scale = codes.std(0).max()
    found = [np.zeros(len(codes), dtype=np.int64)]
    if scale == 0:
        return found
    standard = (codes - codes.mean(0)) / scale  # so that the mixture's floor is relative
    for number in clusters:
        if 1 < number < len(codes):
            mixture = GaussianMixture(number, covariance_type="diag", random_state=0)
            with warnings.catch_warnings():
                # An unconverged fit, or fewer distinct codes than clusters, is a valid partition.
                warnings.simplefilter("ignore", ConvergenceWarning)
                found.append(mixture.fit_predict(standard))
    return found


def least_bound(codes: Codes, sigma: float, groupings: Sequence[Groups]) -> tuple[float, int]:
    """Return the smallest bound in nats over several partitions, and its number of groups."""
    return min(
        (entropy_bound(codes, sigma, groups), len(np.unique(groups))) for groups in groupings
    )


def entropy_bound(codes: Codes, sigma: float, groups: Groups) -> float:
    """Return H(pi) + sum_k pi_k min(log M_k, 1/2 log det(1 + S_k / sigma^2)) in nats."""
    total = 0.0
    for group in np.unique(groups):
        own = codes[groups == group]
        share = len(own) / len(codes)
        gap = (own - own.mean(0)) / sigma
        root = np.linalg.svd(gap, compute_uv=False)
        channel = np.log1p(root**2 / len(own)).sum() / 2
        total += share * (min(log(len(own)), float(channel)) - log(share))
    return total


def fano_bound(nats: float, candidates: int) -> float:
    """Return the largest chance p to pick the right one of m candidates with this information.

    Solves log m - h(p) - (1-p) log(m-1) = nats (Fano's inequality; Cover and Thomas, 2006,
    theorem 2.10.1, without its weakening to (I + log 2) / log m). It holds for the average over
    random sets of candidates too: the left side is convex in p.
    """
    m = candidates
    if nats >= log(m):
        return 1.0

    def excess(p: float) -> float:
        wrong = scipy.special.xlogy(1 - p, m - 1) - scipy.special.xlogy(1 - p, 1 - p)
        return float(log(m) + scipy.special.xlogy(p, p) - wrong - nats)

    if excess(1 / m) >= 0:  # no information, or less than rounding leaves of log m - log m
        return 1 / m
    return float(scipy.optimize.brentq(excess, 1 / m, 1.0))
