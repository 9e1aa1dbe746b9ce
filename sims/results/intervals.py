"""95 % intervals over training seeds and test images.

All cells of a bench are measured on the same test images, so an interval over seeds alone holds for
these images and no others. Seeds are three, images are hundreds: over seeds Student's t is taken, a
bootstrap of three would be far too narrow; over images a bootstrap, every cell redrawn alike, so
that what they share cancels in differences. The two add as variances: seeds and images cross, and
what is neither's alone is counted in both, which makes the interval a little wide (Owen, 2007,
section 3, on the bootstrap of crossed effects).
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

import numpy as np
from jaxtyping import Float

from fedcel import per_image
from fedcel.metrics import NORMAL_QUANTILE, mean_half_width
from sims.results.attack_results import IMAGE_MEASURES, attack_vector_name
from sims.results.columns import ACCURACY, BITS, IDENTIFICATION, Measures, row_measures
from sims.results.records import BenchRow

MIN_SEEDS = 3
"""Seeds below which no interval is given."""


@dataclass(frozen=True)
class Estimate:
    """A mean over n values; `half` is half the width of its 95 % t-interval, `sd` their spread."""

    mean: float | None = None
    half: float | None = None
    sd: float | None = None
    n: int = 0


UNKNOWN = Estimate()
"""The estimate of what was not measured."""


def estimate(values: Iterable[float | None]) -> Estimate:
    """Return the mean of values, and Student's 95 % interval from three values on.

    Args:
        values: One measure's values under several seeds; None is left out.

    Returns:
        The estimate, `UNKNOWN` of no value.
    """
    numbers = [value for value in values if value is not None]
    if not numbers:
        return UNKNOWN
    mean = sum(numbers) / len(numbers)
    if len(numbers) < 2:
        return Estimate(mean, n=len(numbers))
    sd = math.sqrt(sum((value - mean) ** 2 for value in numbers) / (len(numbers) - 1))
    half = None
    if len(numbers) >= MIN_SEEDS:
        variance, freedom = sd**2 / len(numbers), len(numbers) - 1
        half = mean_half_width(mean, variance, freedom, low=-math.inf, high=math.inf, rare=0.0)
    return Estimate(mean, half, sd, len(numbers))


REPLICATES = 200
REQUIRED = (ACCURACY.key, BITS.key)
"""Measures that must be kept of each image of each run, or no sample is drawn."""
Vector = Float[np.ndarray, " T"]


def row_vectors(row: BenchRow, vectors: Mapping[str, Vector]) -> dict[str, Vector]:
    """Return a row's measures per test image, those of its worst attack too, as far as kept.

    `vectors`: what `read_image_vectors` returns.
    """
    names = {key: key for key in (*REQUIRED, IDENTIFICATION.key)}
    if row.worst:
        names |= {key: attack_vector_name(row.worst.id, key) for key in IMAGE_MEASURES}
    full = {key: f"{row.run}{per_image.APART}{name}" for key, name in names.items()}
    return {key: vectors[name] for key, name in full.items() if name in vectors}


def resample_rows(
    rows: Sequence[BenchRow], vectors: Mapping[str, Vector]
) -> list[list[dict[str, float]]]:
    """Draw the test images again, 200 times, the same in all rows.

    A measure that some rows have vectors of is left out of the others, and where no image of a
    shorter vector was drawn.

    Args:
        rows: Cells of a bench, held to an attack where its error is asked for.
        vectors: What `read_image_vectors` returns; some may be of the first images alone.

    Returns:
        By sample and row, the measures by their keys. No sample at all where a run lacks accuracy
        or bits, or runs were measured on different numbers of images.
    """
    vectors_of_rows = [row_vectors(row, vectors) for row in rows]
    if not rows or not all(row.keys() >= {*REQUIRED} for row in vectors_of_rows):
        return []
    counts = {len(row[key]) for row in vectors_of_rows for key in REQUIRED}
    if len(counts) > 1:
        return []
    (count,) = counts
    draw = np.random.default_rng(0)
    times = draw.multinomial(count, np.full(count, 1 / count), REPLICATES).astype(float)
    redrawn = {key for row in vectors_of_rows for key in row}
    fixed = [
        {key: value for key, value in row_measures(row).items() if key not in redrawn}
        for row in rows
    ]
    means = [
        {key: resampled_mean(times, vector) for key, vector in row.items()}
        for row in vectors_of_rows
    ]
    return [
        [
            same | {key: float(row[key][b]) for key in row if not np.isnan(row[key][b])}
            for same, row in zip(fixed, means, strict=True)
        ]
        for b in range(REPLICATES)
    ]


def resampled_mean(times: Float[np.ndarray, "B T"], values: Vector) -> Float[np.ndarray, " B"]:
    """Return the mean of the values in each bootstrap sample; NaN where none of them is in it."""
    counts = times[:, : len(values)]
    total = counts.sum(1)
    summed = np.where(total > 0, counts @ values, np.nan)
    means: Float[np.ndarray, " B"] = summed / np.maximum(total, 1)
    return means


def crossed_interval(
    seeds: Iterable[float | None], images: Iterable[float | None] = ()
) -> Estimate:
    """Return the mean over seeds, and its 95 % interval over seeds and images.

    Args:
        seeds: A value for each training seed; None is left out.
        images: The mean over seeds in each bootstrap sample; without any the interval is over seeds
            alone.

    Returns:
        The estimate; it has no interval below three seeds.

    References:
        Owen, 2007, section 3: the two parts add as variances.
    """
    of_seeds = estimate(seeds)
    means = [value for value in images if value is not None]
    if of_seeds.half is None or len(means) < 2:
        return of_seeds
    half = math.hypot(of_seeds.half, NORMAL_QUANTILE * stdev(means))
    return Estimate(of_seeds.mean, half, of_seeds.sd, of_seeds.n)


def complete_mean(values: Sequence[float | None]) -> float | None:
    """Return the mean of all of them; None where one is not numbers."""
    numbers = [value for value in values if value is not None]
    return fmean(numbers) if numbers and len(numbers) == len(values) else None


def mean_samples(samples: Iterable[Sequence[Measures]], key: str) -> list[float | None]:
    """Return a measure's mean over rows in each sample; None where a row has none."""
    return [complete_mean([row.get(key) for row in rows]) for rows in samples]
