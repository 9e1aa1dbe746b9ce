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

from fedcel import per_image
from sims.estimate import Estimate, estimate

REPLICATES = 200
NORMAL = 1.959964
"""Two-sided 95 % point of the normal law."""
NEEDED = {"accuracy", "bits-beyond-label"}
Row = Mapping[str, object]
Values = Float[np.ndarray, " T"]


def redrawn(
    rows: Sequence[Row], images: Mapping[str, Mapping[str, Values]]
) -> list[list[dict[str, object]]]:
    """Return the rows as each of 200 bootstrap samples of the test images makes them.

    `images` has by run, then by measure, one value for each image; vectors may be shorter, of the
    first images. No samples at all where a run lacks accuracy or bits; an MSE of no vector is None.
    """
    if not rows or not all(images.get(str(row["run"]), {}).keys() >= NEEDED for row in rows):
        return []
    count = max(len(v) for own in images.values() for v in own.values())
    draw = np.random.default_rng(0)
    times = draw.multinomial(count, np.full(count, 1 / count), REPLICATES).astype(float)
    means = [
        {
            key: mean(times, v)
            for key, v in images[str(row["run"])].items()
            if row.get(key) is not None
        }
        for row in rows
    ]
    return [
        [
            {**row, "mse": None, **{key: float(value[b]) for key, value in own.items()}}
            for row, own in zip(rows, means, strict=True)
        ]
        for b in range(REPLICATES)
    ]


def mean(times: Float[np.ndarray, "B T"], values: Values) -> Float[np.ndarray, " B"]:
    """Return the mean of the values in each bootstrap sample."""
    own = times[:, : len(values)]
    weighted: Float[np.ndarray, " B"] = own @ values / own.sum(1)
    return weighted


def crossed(seeds: Iterable[float | None], images: Iterable[float | None] = ()) -> Estimate:
    """Return the mean over seeds, its interval over seeds and images.

    `images` are the means over seeds in each bootstrap sample; without any the interval is over
    seeds alone. There is none below three seeds.
    """
    found = estimate(seeds)
    means = [value for value in images if value is not None]
    if found.half is None or len(means) < 2:
        return found
    return Estimate(found.mean, math.hypot(found.half, NORMAL * stdev(means)), found.sd, found.n)


def whole(values: Sequence[float | None]) -> float | None:
    """Return the mean of all of them; None where one is not known."""
    known = [value for value in values if value is not None]
    return fmean(known) if known and len(known) == len(values) else None


def means(again: Iterable[Sequence[Row]], key: str) -> list[float | None]:
    """Return a measure's mean over rows in each sample; None where a row has none."""
    each = ([row.get(key) for row in rows] for rows in again)
    return [whole([None if value is None else float(str(value)) for value in one]) for one in each]


def of_images(folder: Path) -> dict[str, dict[str, Values]]:
    """Return what a bench kept of each test image, by run and measure; {} where it kept nothing."""
    found: dict[str, dict[str, Values]] = {}
    for key, vector in per_image.read(folder).items():
        run, _, measure = key.rpartition(per_image.APART)
        found.setdefault(run, {})[measure] = vector.double().numpy()
    return found
