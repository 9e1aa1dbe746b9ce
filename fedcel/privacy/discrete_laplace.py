"""Discrete Laplace noise for many values at once, in exact integers; not vetted by others.

P(z) is in proportion to exp(-|z| / t) for a whole number t, drawn as Canonne, Kamath and Steinke
(NeurIPS 2020, algorithms 1 and 2) do it: uniform integers of the system's secure generator, and
comparisons. No floating point is involved, so no low bits tell anything (Mironov, CCS 2012), and no
chance is approximated. Each function draws from the front of an endless sequence of independent
trials, so that how many are drawn at once decides nothing. Only the time it takes depends on the
noise.
"""

import math
import os
from fractions import Fraction

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from fedcel.privacy.clip import check_finite

BITS = 30
"""The scale is about 2^30 steps of the grid."""
LARGEST = 2.0**20
"""Of epsilon: clipped rows then have at most 2^51 steps, whole numbers in double precision."""
WORDS = 2**64


def add_grid_noise(
    clipped: Float[Tensor, "B C"], epsilon: float, sensitivity: float
) -> Float[Tensor, "B C"]:
    """Return rows, rounded to a grid, plus independent noise; each row's release is epsilon-DP.

    `sensitivity` is the largest L1 distance of two rows. Rounding moves two rows apart by at most
    a step a value, which the scale allows for. ValueError on values that are not finite, or on
    epsilon or sensitivity not above 0, an epsilon above 2^20, or numbers too far apart.
    """
    if not 0 < sensitivity < math.inf:
        raise ValueError(f"sensitivity is {sensitivity}, must be finite and above 0")
    if not 0 < epsilon <= LARGEST:
        raise ValueError(f"epsilon is {epsilon}, must be above 0 and at most {LARGEST:g}")
    check_finite(clipped)
    power, t = choose_grid(epsilon, sensitivity, clipped.shape[1])
    whole = (clipped.double() * 2.0**-power).round().long()
    noise = torch.from_numpy(draw_discrete_laplace(t, clipped.numel())).reshape(clipped.shape)
    return (whole + noise).double() * 2.0**power


def choose_grid(epsilon: float, sensitivity: float, values: int) -> tuple[int, int]:
    """Return the power of 2 of the grid's step, and the noise's scale t in steps.

    A row of `values` numbers moves by at most floor(sensitivity / step) + values steps, and t is
    that over epsilon, rounded up: whole numbers, nothing is lost to rounding.
    """
    ratio = sensitivity / epsilon
    power = math.frexp(ratio)[1] - BITS
    if not (math.isfinite(ratio) and -1000 < power < 900):
        raise ValueError(
            f"epsilon is {epsilon} at sensitivity {sensitivity}, too far apart for any grid; try "
            "an epsilon from .1 to 10"
        )
    moved = math.floor(Fraction(sensitivity) / Fraction(2) ** power) + values
    return power, math.ceil(moved / Fraction(epsilon))


def draw_discrete_laplace(t: int, count: int) -> Int[np.ndarray, " count"]:
    """Return independent draws with P(z) = (e^(1/t) - 1) / (e^(1/t) + 1) e^(-|z| / t)."""
    found = np.empty(0, np.int64)
    while len(found) < count:
        missing = count - len(found)
        size = draw_offsets(t, missing) + t * draw_runs(missing)
        negative = draw_below(2, missing) == 1
        drawn = np.where(negative, -size, size)
        found = np.concatenate([found, drawn[~negative | (size > 0)]])  # 0 has one sign
    return found


def draw_offsets(t: int, count: int) -> Int[np.ndarray, " count"]:
    """Return draws from 0 to t - 1 in proportion to exp(-u / t)."""
    found = np.empty(0, np.int64)
    while len(found) < count:
        u = draw_below(t, 2 * (count - len(found)) + 8)
        found = np.concatenate([found, u[draw_decayed(u, t)]])
    return found[:count]


def draw_runs(count: int) -> Int[np.ndarray, " count"]:
    """Return how many heads precede each tail of a coin that shows heads with chance 1/e."""
    tails = np.empty(0, np.int64)
    thrown = 0
    while len(tails) < count:
        coin = draw_decayed(np.ones(2 * (count - len(tails)) + 8, np.int64), 1)
        tails = np.concatenate([tails, thrown + np.flatnonzero(~coin)])
        thrown += len(coin)
    return np.diff(tails[:count], prepend=-1) - 1


def draw_decayed(u: Int[np.ndarray, " N"], t: int) -> Bool[np.ndarray, " N"]:
    """Return independent bits, each true with chance exp(-u / t), for u from 0 to t.

    The first K at which a coin of chance u / (t K) fails is odd with that chance.
    """
    odd = np.ones(len(u), bool)
    going = np.arange(len(u))
    k = 1
    while len(going):
        going = going[draw_below(t * k, len(going)) < u[going]]
        odd[going] ^= True
        k += 1
    return odd


def draw_below(limit: int, count: int) -> Int[np.ndarray, " count"]:
    """Return independent uniform integers from 0 to limit - 1, of at most 2^62."""
    words = np.frombuffer(os.urandom(8 * count), np.uint64)
    even = WORDS - WORDS % limit  # below it every remainder is as likely
    if even < WORDS and len(over := np.flatnonzero(words >= np.uint64(even))):
        words = words.copy()
        words[over] = draw_below(limit, len(over)).astype(np.uint64)
    return (words % np.uint64(limit)).astype(np.int64)
