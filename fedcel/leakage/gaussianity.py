"""Distance of a class's messages from Gaussian: the slack of the certificate, which assumes so."""

from math import e, log, pi
from typing import NamedTuple

import numpy as np
import scipy
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

GRID_STEP = 0.5
"""In units of sigma: the trapezoid rule is within 1e-5 nats at this width."""
GRID_REACH = 18
"""Grid steps that are kept on either side of every value, 9 sigma."""
PAIRS_AT_ONCE = 2**22
"""Pairs of a cell of the grid and a value that are in memory at once: 32 MiB."""
MIN_KURTOSIS_IMAGES = 4
"""Images of a class that a sample kurtosis needs."""


class Gaussianity(NamedTuple):
    """One Gaussian a class held against the messages themselves, averaged over images."""

    gaussian_bits: float
    """sum_d 1/2 log2(1 + s_d / sigma^2): I(image; message | label) were each class's messages
    Gaussian of their covariance. This less the true information is their negentropy."""
    direction_bits: float
    """The part of the negentropy that shows in single principal directions."""
    kurtosis: float | None
    """Excess kurtosis of the features along principal directions, weighted by variance; None where
    nothing varies. 0: Gaussian, above: heavy tails, below: flat or in two groups."""


def gaussianity(z: Float[Tensor, "M D"], y: Int[Tensor, " M"], sigma: float) -> Gaussianity:
    """Measure how Gaussian the messages z + sigma xi of each class are, for exactly these images.

    The message has a density, a mixture of one Gaussian an image, so that its negentropy J is
    defined at any M and D, as Mardia's statistics of whitened features are not; for uncorrelated
    directions J = sum_d J_d + their dependence. The J_d are integrated. A finite M counts as not
    Gaussian too.

    Args:
        z: Features of the images, (M, D).
        y: Their labels, (M,).
        sigma: Standard deviation of the Gaussian noise at the cut, above 0, in units of z.

    Returns:
        Bits of the Gaussian approximation, what single directions give away, and the kurtosis.

    Raises:
        ValueError: sigma is not above 0.

    References:
        Comon, Signal Processing, 1994 (negentropy of directions); Mardia, 1970 (the alternative).
    """
    if not sigma > 0:
        raise ValueError(f"sigma is {sigma}, must be above 0: without noise nothing has a density")
    labels = y.numpy()
    features = z.double().numpy()
    gaussian_nats = direction_nats = weighted_kurtosis = variance = 0.0
    for label in np.unique(labels):
        scaled = features[labels == label] / sigma
        count = len(scaled)
        components = principal_components(scaled)
        power = components.var(0)
        gaussian_nats += count * float(np.log1p(power).sum() / 2)
        direction_nats += count * sum(negentropy(line) for line in components.T)
        varying = power > 1e-12 * (1 + power.sum())
        if count >= MIN_KURTOSIS_IMAGES and varying.any():
            weight = count * power[varying]
            kurtosis = scipy.stats.kurtosis(components[:, varying], bias=False)
            weighted_kurtosis += float(weight @ kurtosis)
            variance += float(weight.sum())
    divisor = len(labels) * log(2)  # from a sum of nats to the mean of an image's bits
    return Gaussianity(
        gaussian_nats / divisor,
        direction_nats / divisor,
        weighted_kurtosis / variance if variance else None,
    )


def principal_components(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the centred rows along their principal directions, which are uncorrelated."""
    directions, scale, _ = np.linalg.svd(rows - rows.mean(0), full_matrices=False)
    return np.asarray(directions * scale, dtype=np.float64)


def negentropy(line: NDArray[np.float64]) -> float:
    """Return J = h(Gaussian of the same variance) - h(values + N(0, 1)) on a line, in nats."""
    reach = np.arange(-GRID_REACH, GRID_REACH + 1)
    cells = np.unique(np.rint(line / GRID_STEP)[:, None] + reach)
    pieces = np.array_split(cells, -(-cells.size * line.size // PAIRS_AT_ONCE))
    sums = [np.exp(-((piece[:, None] * GRID_STEP - line) ** 2) / 2).mean(1) for piece in pieces]
    density = np.concatenate(sums) / np.sqrt(2 * pi)
    entropy = -GRID_STEP * float((density * np.log(density)).sum())
    return log(2 * pi * e * (1 + float(line.var()))) / 2 - entropy
