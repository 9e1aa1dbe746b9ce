"""Upper bounds on what smashed data can tell, from their spread only."""

import warnings
from collections.abc import Sequence
from math import log, log2
from typing import NamedTuple

import numpy as np
import scipy
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from fedcel.errors import NetError
from fedcel.torch_state import usual_torch_state

CLUSTERS = (1, 2, 5, 10, 20)
"""Numbers of groups that are tried for all images together."""
CLUSTERS_OF_CLASS = (1, 2, 5)
"""Numbers of groups that are tried within a class."""
LARGE_TABLE = 2**21
"""Values above which mixtures are fitted in a few directions, and determinants by Cholesky."""
DIRECTIONS = 32
"""Directions of largest variance in which the mixtures of a large table are fitted."""
MAX_CHOLESKY_POWER = 1e8
"""Signal-to-noise ratio up to which a Cholesky factor is exact to 1e-8 nats a direction."""
Features = NDArray[np.float64]
Groups = NDArray[np.int64]


class Certificate(NamedTuple):
    """Upper bounds for one message about an image drawn uniformly from the given ones.

    They hold for any attacker and these images, not for a population. Bits that are measured of
    the same images may lie above by the chance of the noise drawn, never by more: see
    `fedcel.attacks.contradictions`. At sigma 0 the bounds are exact: all that tells distinct
    features apart.
    """

    bits: float
    """Upper bound on I(image; message), in bits."""
    bits_within_class: float
    """Upper bound on I(image; message | label), in bits."""
    identification: float
    """Upper bound on the chance to pick the right one of the candidates (Fano)."""


@usual_torch_state()
def certificate(
    z: Float[Tensor, "M D"],
    y: Int[Tensor, " M"],
    sigma: float,
    candidates: int = 100,
    *,
    scale: Float[Tensor, "M D"] | None = None,
    large_table: int = LARGE_TABLE,
) -> Certificate:
    """Compute an upper bound on what messages tell any attacker about these images.

    The images are split into groups k, by a diagonal Gaussian mixture or by label; with shares
    pi_k and covariances S_k, I(image; message) <= H(pi) + sum_k pi_k min(log M_k,
    1/2 log det(1 + S_k / sigma^2)), because a Gaussian has the largest entropy of its covariance
    and a group has at most log M_k nats. If the noise of image i has covariance N_i, with mean N_k
    in a group, 1/2 log det(N_k + S_k) - mean_i 1/2 log det N_i replaces the last term. The bound
    holds for every partition, also a badly fitted one, so the smallest over several is returned.

    Args:
        z: Features of the images, (M, D).
        y: Their labels, (M,).
        sigma: Standard deviation of the Gaussian noise at the cut, in units of z.
        candidates: Number of images among which the attacker picks, 1 or more.
        scale: Standard deviation of each value's noise in units of sigma, above 0; None: all are 1.
        large_table: If M D is above it, partitions are fitted only in the directions of largest
            variance, which takes seconds instead of minutes. The bound stays valid.

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
        raise ValueError("0 images are certified, must be 1 or more; give those that are sent")
    if not z.isfinite().all():
        raise NetError("smashed data hold NaN or infinity; check the images and the encoder")
    count = len(y)
    candidates = min(candidates, count)
    labels = y.numpy().astype(np.int64)
    classes = [labels == label for label in np.unique(labels)]
    if sigma == 0:
        bits = distinct_bits(z)
        within = sum(int(rows.sum()) * distinct_bits(z[torch.from_numpy(rows)]) for rows in classes)
        return Certificate(bits, within / count, fano_bound(bits * log(2), candidates))
    features = z.detach().double().numpy()
    noise = np.broadcast_to(sigma, features.shape)
    if scale is not None:
        noise = noise * scale.double().numpy()
    is_large = features.size > large_table
    coordinates = find_main_coordinates(features) if is_large else features
    partitions = find_partitions(coordinates, sorted({*CLUSTERS, len(classes)}))
    nats = min(
        entropy_bound(features, noise, groups, is_large=is_large)
        for groups in [*partitions, labels]
    )
    within = 0.0
    for rows in classes:
        within += (
            int(rows.sum())
            / count
            * min(
                entropy_bound(features[rows], noise[rows], groups, is_large=is_large)
                for groups in find_partitions(coordinates[rows], CLUSTERS_OF_CLASS)
            )
        )
    return Certificate(nats / log(2), within / log(2), fano_bound(nats, candidates))


def distinct_bits(z: Float[Tensor, "M D"]) -> float:
    """Return what the features tell of the image in bits: equal ones are not told apart."""
    counts = torch.unique(z, dim=0, return_counts=True)[1].double()
    return log2(len(z)) - float((counts * counts.log2()).sum()) / len(z)


def span_coordinates(features: Float[Tensor, "M D"]) -> Float[Tensor, "M r"]:
    """Return features as coordinates in the space that they span, where D exceeds M.

    Distances stay as they are. Noise N(0, I) in all other directions is the same whichever image
    sends it, so that a message tells as much without it. Equal features stay equal.
    """
    if features.shape[1] <= len(features):
        return features
    distinct, group = features, torch.arange(len(features))
    if len({(row + 0.0).cpu().numpy().tobytes() for row in features}) < len(features):
        distinct, group = torch.unique(features, dim=0, return_inverse=True)
    triangle: Tensor = torch.linalg.qr((distinct - distinct.mean(0)).T, mode="r").R
    return triangle.T[group]


def find_main_coordinates(features: Features) -> Features:
    """Return the features' coordinates along the directions of largest variance.

    Groups of many features are found there in seconds instead of minutes; a bound holds for any.
    """
    centred = torch.from_numpy(features - features.mean(0))
    if centred.shape[1] > len(centred):  # the same coordinates, from the smaller of both products
        squares, rows = torch.linalg.eigh(centred @ centred.T)
        coordinates = rows[:, -DIRECTIONS:] * squares[-DIRECTIONS:].clamp_min(0).sqrt()
    else:
        coordinates = centred @ torch.linalg.eigh(centred.T @ centred)[1][:, -DIRECTIONS:]
    return np.asarray(coordinates, dtype=np.float64)


def find_partitions(features: Features, clusters: Sequence[int]) -> list[Groups]:
    """Return one grouping of the features for each number of clusters below their number."""
    from sklearn.exceptions import ConvergenceWarning  # a second that most commands need not wait
    from sklearn.mixture import GaussianMixture

    scale = features.std(0).max()
    partitions = [np.zeros(len(features), dtype=np.int64)]
    if scale == 0:
        return partitions
    standard = (features - features.mean(0)) / scale  # so that the mixture's floor is relative
    for number in clusters:
        if 1 < number < len(features):
            mixture = GaussianMixture(number, covariance_type="diag", random_state=0)
            with warnings.catch_warnings():
                # An unconverged fit, or fewer distinct rows than clusters, is a valid partition.
                warnings.simplefilter("ignore", ConvergenceWarning)
                partitions.append(mixture.fit_predict(standard))
    return partitions


def entropy_bound(
    features: Features, noise: float | Features, groups: Groups, *, is_large: bool = False
) -> float:
    """Return H(pi) + sum_k pi_k min(log M_k, I_k) in nats, I_k the bound of a Gaussian channel."""
    total = 0.0
    noise = np.broadcast_to(noise, features.shape)
    for group in np.unique(groups):
        members, deviation = features[groups == group], noise[groups == group]
        share = len(members) / len(features)
        mean_deviation = deviation[0]
        excess = 0.0
        if (deviation != mean_deviation).any():
            mean_deviation = np.sqrt(np.square(deviation).mean(0))
            excess = float(np.log(mean_deviation / deviation).sum(1).mean())
        gap = (members - members.mean(0)) / mean_deviation
        channel = channel_nats(gap, is_large) + excess
        total += share * (min(log(len(members)), channel) - log(share))
    return total


def channel_nats(gap: Features, is_large: bool) -> float:
    """Return 1/2 log det(1 + S), S the covariance of centred rows in units of the noise.

    By singular values, exact at any scale; of a large table by a Cholesky factor, unless the noise
    is very small.
    """
    count, width = gap.shape
    power = float(np.einsum("nd,nd->", gap, gap)) / count
    if is_large and power < MAX_CHOLESKY_POWER:
        gram = (gap.T @ gap if width <= count else gap @ gap.T) / count
        gram[np.diag_indices_from(gram)] += 1.0
        return float(np.log(np.diag(np.linalg.cholesky(gram))).sum())
    root = np.linalg.svd(gap, compute_uv=False)
    return float(np.log1p(root**2 / count).sum() / 2)


def fano_bound(nats: float, candidates: int) -> float:
    """Bound from above the chance to pick the right one of several images with this information.

    Solves log m - h(p) - (1-p) log(m-1) = nats for p: Fano's inequality without its weakening to
    (I + log 2) / log m. It holds for the average over random sets of candidates too, because the
    left side is convex in p.

    Args:
        nats: Information about which image it is, 0 or more.
        candidates: Number m of images, 1 or more.

    Returns:
        The largest chance, in [1/m, 1].

    References:
        Cover and Thomas, Elements of Information Theory, 2006, theorem 2.10.1.
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
