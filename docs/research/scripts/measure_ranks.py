"""Rank correlation of leakage measures with the error of the best attack, from kept rows."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

Array = NDArray[np.float64]
MEASURES = {
    "exact-bits": -1,
    "population-bits": -1,
    "linearised-bits": -1,
    "linearised-mse": 1,
    "van-trees-mse": 1,
    "dfil": -1,
    "fsinfo": -1,
}
"""Measures, and whether they rise or fall with the error of an attack."""
ALL = "all"
ALL_SHARES = "all, as shares"
RESAMPLES = 4000
FEWEST, FEWEST_RESAMPLED = 3, 6
"""Encoders below which there are no ranks, and no intervals of their correlation."""


def rank_measures(encoders: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield, of each data set and of all together, the rank correlations and the ratios of errors.

    A row `rank` has Spearman's correlation of a measure with the error of the best attack, its
    sign turned so that 1 is a perfect ranking, and a 95 % bootstrap interval over encoders. A row
    `prediction` has the best attack's error over the linearised one.

    Args:
        encoders: Rows of encoders.
    """
    groups: dict[str, Sequence[Mapping[str, Any]]] = {}
    for row in encoders:
        groups[row["data"]] = [*groups.get(row["data"], ()), row]
    if len(groups) > 1:
        groups |= {ALL: encoders, ALL_SHARES: [to_shares(row) for row in encoders]}
    for data, rows in groups.items():
        if len(rows) < FEWEST:
            continue
        errors = np.array([row["best-mse"] for row in rows])
        for measure, sign in MEASURES.items():
            values = [shorten(row[measure]) for row in rows if row.get(measure) is not None]
            if len(values) == len(rows):
                interval = estimate_correlation(sign * np.array(values), errors)
                names = ("correlation", "correlation-low", "correlation-high")
                yield {
                    "what": "rank",
                    "data": data,
                    "measure": measure,
                    "encoders": len(rows),
                    **dict(zip(names, interval, strict=True)),
                }
        if data != ALL_SHARES:
            ratios = np.array([row["error-ratio"] for row in rows])
            yield {
                "what": "prediction",
                "data": data,
                "encoders": len(rows),
                "ratio-least": float(ratios.min()),
                "ratio-median": float(np.median(ratios)),
                "ratio-most": float(ratios.max()),
                "below-linearised": int((ratios < 1).sum()),
                "below-van-trees": sum(row["best-mse"] < row["van-trees-mse"] for row in rows),
            }


def shorten(value: float) -> float:
    """Return a number with four digits: of exact bits at their cap the others are chance."""
    return float(f"{value:.4g}")


def to_shares(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return measures without a unit, so that images of other sizes and spreads compare.

    Errors in units of those without a message, bits of a pixel, exact bits in units of their cap.
    FSInfo has no such form of its own: the bits of a pixel are it.
    """
    return {
        "best-mse": row["best-mse"] / row["label-mse"],
        "exact-bits": row["exact-bits"] / row["exact-cap"],
        "population-bits": row["population-bits"] / row["pixels"],
        "linearised-bits": row["linearised-bits"] / row["pixels"],
        "linearised-mse": row["linearised-mse"] / row["prior-variance"],
        "van-trees-mse": row["van-trees-mse"] / row["prior-variance"],
        "dfil": row["dfil"] * row["prior-variance"],
    }


def estimate_correlation(x: Array, y: Array) -> tuple[float | None, float | None, float | None]:
    """Return Spearman's rank correlation and the ends of its 95 % percentile bootstrap interval.

    Where all values of a side are equal there is none, three times None. Such resamples are left
    out. Below six pairs there is no interval.

    Args:
        x: (n,).
        y: (n,).

    References:
        Efron and Tibshirani, An Introduction to the Bootstrap, 1993, section 13.3.
    """
    correlation = float(correlate_ranks(x, y))
    if np.isnan(correlation):
        return None, None, None
    if len(x) < FEWEST_RESAMPLED:
        return correlation, None, None
    draws = np.random.default_rng(0).integers(len(x), size=(RESAMPLES, len(x)))
    resampled = correlate_ranks(x[draws], y[draws])
    low, high = np.nanpercentile(resampled, [2.5, 97.5])
    return correlation, float(low), float(high)


def correlate_ranks(x: Array, y: Array) -> Array:
    """Return Spearman's correlation along the last axis, NaN where a side is constant."""
    a, b = (rankdata(side, axis=-1) for side in (x, y))
    a, b = (side - side.mean(-1, keepdims=True) for side in (a, b))
    scale = np.sqrt((a * a).sum(-1) * (b * b).sum(-1))
    ratio: Array = np.divide(
        (a * b).sum(-1), scale, where=scale > 0, out=np.full_like(scale, np.nan)
    )
    return ratio
