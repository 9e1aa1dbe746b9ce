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
from pathlib import Path
from statistics import fmean, stdev

import numpy as np
from jaxtyping import Float

from fedcel.runs import per_image
from sims.results.estimate import Estimate, estimate
from sims.results.worst_attack import OF_ATTACKS, is_mean

REPLICATES = 200
NORMAL = 1.959964
"""Two-sided 95 % point of the normal law."""
NEEDED = {"accuracy", "bits-beyond-label"}
EVEN = "even "
"""Before a measure: of the worst attack among those that all cells met, where another is worse."""
Row = Mapping[str, object]
Values = Float[np.ndarray, " T"]


def resample_rows(
    rows: Sequence[Row], images: Mapping[str, Mapping[str, Values]]
) -> list[list[dict[str, object]]]:
    """Return the rows as each of 200 bootstrap samples of the test images makes them.

    `images` has by run, then by measure, one value for each image; vectors may be shorter, of the
    first images. No samples at all where a run lacks accuracy or bits, or runs were measured on
    different numbers of images. A measure that some rows have vectors of is None in the others, and
    where no image of a shorter vector was drawn.
    """
    own = [images.get(str(row["run"]), {}) for row in rows]
    if not rows or not all(each.keys() >= NEEDED for each in own):
        return []
    counts = {len(each[key]) for each in own for key in NEEDED}
    if len(counts) > 1:
        return []
    (count,) = counts
    draw = np.random.default_rng(0)
    times = draw.multinomial(count, np.full(count, 1 / count), REPLICATES).astype(float)
    keys = dict.fromkeys(key for each in own for key in each)
    both = list(zip(rows, own, strict=True))
    means = [{key: resample_measure(times, row, each, key) for key in keys} for row, each in both]
    return [
        [
            {**row, **{key: values[b] for key, values in each.items()}}
            for row, each in zip(rows, means, strict=True)
        ]
        for b in range(REPLICATES)
    ]


def resample_measure(
    times: Float[np.ndarray, "B T"], row: Row, each: Mapping[str, Values], key: str
) -> list[float | None]:
    """Return a row's measure in each sample."""
    if key not in each or row.get(key) is None:
        return [None] * len(times)
    return [None if np.isnan(value) else float(value) for value in resampled_mean(times, each[key])]


def resampled_mean(times: Float[np.ndarray, "B T"], values: Values) -> Float[np.ndarray, " B"]:
    """Return the mean of the values in each bootstrap sample; NaN where none of them is in it."""
    own = times[:, : len(values)]
    total = own.sum(1)
    summed = np.where(total > 0, own @ values, np.nan)
    found: Float[np.ndarray, " B"] = summed / np.maximum(total, 1)
    return found


def crossed_interval(
    seeds: Iterable[float | None], images: Iterable[float | None] = ()
) -> Estimate:
    """Return the mean over seeds, its interval over seeds and images.

    `images` are the means over seeds in each bootstrap sample; without any the interval is over
    seeds alone. There is none below three seeds.
    """
    found = estimate(seeds)
    means = [value for value in images if value is not None]
    if found.half is None or len(means) < 2:
        return found
    return Estimate(found.mean, math.hypot(found.half, NORMAL * stdev(means)), found.sd, found.n)


def complete_mean(values: Sequence[float | None]) -> float | None:
    """Return the mean of all of them; None where one is not known."""
    known = [value for value in values if value is not None]
    return fmean(known) if known and len(known) == len(values) else None


def mean_samples(again: Iterable[Sequence[Row]], key: str) -> list[float | None]:
    """Return a measure's mean over rows in each sample; None where a row has none."""
    each = ([row.get(key) for row in rows] for rows in again)
    return [
        complete_mean([None if value is None else float(str(value)) for value in one])
        for one in each
    ]


def read_image_vectors(folder: Path, even: bool = False) -> dict[str, dict[str, Values]]:
    """Return what a bench kept of each test image, by run and measure; {} where it kept nothing.

    With `even`, too, under names that begin with `EVEN`, what the attacks of tables scored.
    """
    found: dict[str, dict[str, Values]] = {}
    for key, vector in per_image.read_vectors(folder).items():
        run, _, measure = key.rpartition(per_image.APART)
        if measure.startswith(EVEN) and not even:
            continue
        found.setdefault(run, {})[measure] = vector.double().numpy()
    return found


def select_image_vectors(folder: Path, rows: Sequence[Row]) -> dict[str, dict[str, Values]]:
    """Return what a bench kept of each test image for these rows, by run and measure.

    What is of another attack than a row's is left out.
    """
    found = read_image_vectors(folder, even=True)
    for row in rows:
        own = found.get(str(row["run"]), {})
        for key in OF_ATTACKS:
            each = [own.pop(name) for name in (f"{EVEN}{key}", key) if name in own]
            fitting = [vector for vector in each if is_mean(row.get(key), vector)]
            own |= {key: fitting[0]} if fitting else {}
    return found
