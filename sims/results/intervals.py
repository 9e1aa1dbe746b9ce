"""95 % intervals over training seeds and test images.

All cells of a bench are measured on the same test images, so an interval over seeds only holds for
these images and no others. Seeds are three, images are hundreds: over seeds Student's t is taken, a
bootstrap of three would be far too narrow; over images a bootstrap, every cell redrawn alike, so
that what they share cancels in differences. The two add as variances: seeds and images cross, and
what is neither's alone is counted in both, which makes the interval a little wide (Owen, 2007,
section 3, on the bootstrap of crossed effects).
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import stdev
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from fedcel import per_image
from fedcel.metrics import NORMAL_QUANTILE, mean_half_width
from sims.results.attack_results import IMAGE_MEASURES, attack_vector_name
from sims.results.columns import ACCURACY, BITS, COLUMNS, IDENTIFICATION, POSITIONS
from sims.results.records import BenchRow

MIN_SEEDS = 3
"""Seeds below which no interval is given."""
REPLICATES = 200
REQUIRED = (ACCURACY.key, BITS.key)
"""Measures that must be kept of each image of each run, or no sample is drawn."""
Vector = Float[np.ndarray, " T"]


class Estimate(NamedTuple):
    """A mean, None where nothing was measured, and half the width of its 95 % interval."""

    mean: float | None = None
    half: float | None = None


def estimate(values: Iterable[float | None]) -> Estimate:
    """Return the mean of what is known, and Student's 95 % interval from three values on."""
    numbers = [value for value in values if value is not None and not math.isnan(value)]
    if not numbers:
        return Estimate()
    mean = sum(numbers) / len(numbers)
    if len(numbers) < MIN_SEEDS:
        return Estimate(mean)
    freedom = len(numbers) - 1
    variance = sum((value - mean) ** 2 for value in numbers) / freedom / len(numbers)
    half = mean_half_width(mean, variance, freedom, low=-math.inf, high=math.inf, rare=0.0)
    return Estimate(mean, half)


def estimate_samples(values: Float[np.ndarray, "S n"]) -> Estimate:
    """Return a mean over n training seeds, and its 95 % interval over seeds and images.

    The first sample is the images as measured, the others are bootstrap samples: without any the
    interval is over seeds only. A seed without samples, all of them NaN, is left out of the
    spread over images, and so is a sample that is NaN for another seed.

    References:
        Owen, 2007, section 3: the two parts add as variances.
    """
    of_seeds, is_sampled = estimate(values[0].tolist()), ~np.isnan(values[1:]).all(0)
    images = values[1:, is_sampled].sum(1) / max(1, is_sampled.sum())
    images = images[~np.isnan(images)]
    if of_seeds.half is None or not is_sampled.any() or len(images) < 2:
        return of_seeds
    half = math.hypot(of_seeds.half, NORMAL_QUANTILE * stdev(images.tolist()))
    return Estimate(of_seeds.mean, half)


def row_vectors(row: BenchRow, vectors: Mapping[str, Vector]) -> dict[str, Vector]:
    """Return a row's measures per test image, those of its worst attack too, as far as kept."""
    names = {key: key for key in (*REQUIRED, IDENTIFICATION.key)}
    if row.worst:
        names |= {key: attack_vector_name(row.worst.id, key) for key in IMAGE_MEASURES}
    full = {key: f"{row.run}{per_image.APART}{name}" for key, name in names.items()}
    return {key: vectors[name] for key, name in full.items() if name in vectors}


def measure_rows(
    rows: Sequence[BenchRow], vectors: Mapping[str, Vector]
) -> Float[np.ndarray, "S R K"]:
    """Return the rows' measures, by `POSITIONS`, and again in 200 samples of the test images.

    Images are drawn alike in all rows. A measure that some rows have vectors of is NaN in the
    others, and where no image of a shorter vector was drawn. There are no samples where a run
    lacks accuracy or bits, or runs were measured on different numbers of images.
    """
    measured = np.array([[row.measure(c.key) for c in COLUMNS] for row in rows], float)
    image_vectors = [row_vectors(row, vectors) for row in rows]
    counts = {len(row.get(key, ())) for row in image_vectors for key in REQUIRED}
    if len(counts) > 1 or 0 in counts:
        return measured[None]
    (count,) = counts
    draw = np.random.default_rng(0)
    times = draw.multinomial(count, np.full(count, 1 / count), REPLICATES).astype(float)
    samples = np.tile(measured, (REPLICATES, 1, 1))
    for key in {key for row in image_vectors for key in row}:
        for number, row in enumerate(image_vectors):
            means = resampled_mean(times, row[key]) if key in row else np.nan
            samples[:, number, POSITIONS[key]] = means
    return np.concatenate([measured[None], samples])


def resampled_mean(times: Float[np.ndarray, "B T"], values: Vector) -> Float[np.ndarray, " B"]:
    """Return the mean of the values in each bootstrap sample; NaN where none of them is in it."""
    counts = times[:, : len(values)]
    total = counts.sum(1)
    summed = np.where(total > 0, counts @ values, np.nan)
    means: Float[np.ndarray, " B"] = summed / np.maximum(total, 1)
    return means
