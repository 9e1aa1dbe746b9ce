"""How far a class's messages are from Gaussian: what the certificate gives away by assuming so."""

from math import e, log, pi
from typing import NamedTuple

import numpy as np
import scipy
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

STEP = 0.5
"""Of the grid, in units of sigma: the trapezoid rule is within 1e-5 nats at this width."""
REACH = 18
"""Grid steps that are kept on either side of every code, 9 sigma."""
LARGEST = 2**22
"""Pairs of a cell of the grid and a code that are in memory at once: 32 MiB."""
FEWEST = 4
"""Images of a class that a sample kurtosis needs."""


class Gaussianity(NamedTuple):
    """One Gaussian a class held against the messages themselves, averaged over images."""

    gaussian_bits: float
    """sum_d 1/2 log2(1 + s_d / sigma^2): I(image; message | label) were each class's messages
    Gaussian of their covariance. This less the true information is their negentropy."""
    direction_bits: float
    """The part of the negentropy that shows in single principal directions."""
    kurtosis: float | None
    """Excess kurtosis of the codes along principal directions, weighted by variance; 0: Gaussian,
    above: heavy tails, below: flat or in two groups. None where nothing varies."""


def gaussianity(z: Float[Tensor, "M D"], y: Int[Tensor, " M"], sigma: float) -> Gaussianity:
    """Return how Gaussian the messages z + sigma xi of each class are, for exactly these images.

    Why not Mardia's (1970) statistics of whitened codes: with fewer images than directions every
    whitened code lies equally far out, whatever the law. The message has a density, a mixture of
    one Gaussian an image, so its negentropy J is defined at any M and D; for uncorrelated
    directions J = sum_d J_d + their dependence (Comon, Signal Processing, 1994). The J_d are
    integrated. A finite M counts as not Gaussian too. ValueError unless sigma > 0.
    """
    if not sigma > 0:
        raise ValueError(f"sigma is {sigma}, must be above 0: without noise nothing has a density")
    labels, codes = y.numpy(), z.double().numpy()
    gaussian = single = weighted = variance = 0.0
    for label in np.unique(labels):
        own = codes[labels == label] / sigma
        along = principal_components(own)
        power = along.var(0)
        gaussian += len(own) * float(np.log1p(power).sum() / 2)
        single += len(own) * sum(negentropy(line) for line in along.T)
        seen = power > 1e-12 * (1 + power.sum())
        if len(own) >= FEWEST and seen.any():
            weight = len(own) * power[seen]
            weighted += float(weight @ scipy.stats.kurtosis(along[:, seen], bias=False))
            variance += float(weight.sum())
    bits = len(labels) * log(2)
    return Gaussianity(gaussian / bits, single / bits, weighted / variance if variance else None)


def principal_components(codes: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the centred codes along their principal directions, which are uncorrelated."""
    left, scale, _ = np.linalg.svd(codes - codes.mean(0), full_matrices=False)
    return np.asarray(left * scale, dtype=np.float64)


def negentropy(line: NDArray[np.float64]) -> float:
    """Return J = h(Gaussian of the same variance) - h of codes + N(0, 1) on a line, in nats."""
    cells = np.unique(np.rint(line / STEP)[:, None] + np.arange(-REACH, REACH + 1))
    pieces = np.array_split(cells, -(-cells.size * line.size // LARGEST))
    each = [np.exp(-((piece[:, None] * STEP - line) ** 2) / 2).mean(1) for piece in pieces]
    density = np.concatenate(each) / np.sqrt(2 * pi)
    own = -STEP * float((density * np.log(density)).sum())
    return log(2 * pi * e * (1 + float(line.var()))) / 2 - own
