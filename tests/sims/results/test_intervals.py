"""Intervals over seeds and images: closed forms, and how often they hold."""

import numpy as np
import pytest

from fedcel.metrics import NORMAL_QUANTILE
from sims.results.attack_results import attack_vector_name
from sims.results.columns import POSITIONS
from sims.results.intervals import (
    REPLICATES,
    estimate,
    estimate_samples,
    measure_rows,
    resampled_mean,
)
from sims.results.records import BenchRow
from tests.sims.results.made import attack, make_row

BITS = "bits-beyond-label"
SEEDS, IMAGES, TRIED = 3, 60, 400


def vectors(run: str, *values: float) -> dict[str, np.ndarray]:
    """Return a run's measures of each image: these bits, and all answers right."""
    return {f"{run}|accuracy": np.ones(len(values)), f"{run}|{BITS}": np.array(values)}


def rows(*runs: str, bits: float = 2.0, **more: object) -> list[BenchRow]:
    """Return a row of each run, held to an attack of error .1."""
    worst = attack("decoder", 0.1)
    return [
        make_row("v", 1.0, run=run, bits=bits, accuracy=1.0, worst=worst, **more) for run in runs
    ]


def test_a_bootstrap_mean_by_hand() -> None:
    """Twice the first, once the last; a shorter vector has the first images alone."""
    times = np.array([[2.0, 0.0, 1.0], [1.0, 1.0, 1.0]])
    assert resampled_mean(times, np.array([1.0, 5.0, 4.0])).tolist() == [2.0, pytest.approx(10 / 3)]
    assert resampled_mean(times, np.array([1.0, 5.0])).tolist() == [1.0, 3.0]
    assert np.isnan(resampled_mean(np.array([[0.0, 1.0]]), np.array([2.0]))[0])


def test_rows_are_redrawn_alike_in_all_cells() -> None:
    """What two cells share cancels; what no vector says stays."""
    cells = rows("a", "b", **{"certificate-bits": 7.0})
    measured, *samples = measure_rows(cells, vectors("a", 1, 2, 3) | vectors("b", 2, 3, 4))
    assert (measured[:, POSITIONS[BITS]] == 2.0).all()
    assert len(samples) == REPLICATES
    found = np.stack(samples)
    first, second = found[..., POSITIONS[BITS]].T
    np.testing.assert_allclose(second - first, 1.0)
    assert len({*first}) > 3
    assert (found[..., POSITIONS["mse"]] == 0.1).all()
    assert (found[..., POSITIONS["certificate-bits"]] == 7.0).all()


def test_a_measure_that_one_run_lacks_is_of_no_use_and_few_targets_are_of_some() -> None:
    """Left out, so that no mean of fewer passes for one of all; so where no target is drawn."""
    cells = rows("a", "b")
    name = f"a|{attack_vector_name(attack('decoder', 0.1).id, 'mse')}"
    images = vectors("a", *range(50)) | vectors("b", *range(50)) | {name: np.array([0.1])}
    found = measure_rows(cells, images)[..., POSITIONS["mse"]]
    first, second = found[1:].T
    assert np.isnan(second).all()
    assert 0.2 < np.isnan(first).mean() < 0.6  # (1 - 1/50)^50 is .36
    assert estimate_samples(found) == estimate([0.1, 0.1])


def test_runs_measured_on_other_images_are_not_paired() -> None:
    """Fifty and sixty: the same place is not the same image."""
    images = vectors("a", *range(50)) | vectors("b", *range(60))
    assert len(measure_rows(rows("a", "b"), images)) == 1


def test_the_spread_over_samples_is_the_standard_error() -> None:
    """Of a plain mean it is sd / sqrt(T), to the noise of 200 samples."""
    values = np.random.default_rng(1).normal(size=400)
    drawn = measure_rows(rows("a"), vectors("a", *values))[1:, 0, POSITIONS[BITS]]
    assert np.std(drawn) == pytest.approx(values.std() / 20, rel=0.15)


@pytest.mark.parametrize("images", [{}, {f"a|{BITS}": np.ones(3)}, vectors("b", 1, 2)])
def test_nothing_is_known_of_images_where_a_run_kept_none(images: dict[str, np.ndarray]) -> None:
    """Not a sample, rather than samples that do not vary."""
    assert len(measure_rows(rows("a"), images)) == 1


def test_the_parts_add_as_variances() -> None:
    """3 over seeds and 4 over images are 5; one of them alone is itself."""
    seeds = [1.0, 2.0, 3.0]
    alone = estimate(seeds)
    assert alone.half is not None
    images = [1.0, 1.0 + 4 / 3 * alone.half / NORMAL_QUANTILE * 2**0.5]
    values = np.array([seeds, *([image] * 3 for image in images)])
    assert estimate_samples(values).half == pytest.approx(5 / 3 * alone.half)
    assert estimate_samples(values[:1]) == alone
    assert estimate_samples(np.array([seeds, [np.nan] * 3, [np.nan] * 3])) == alone
    assert estimate_samples(values[:, :2]).half is None


def test_a_seed_without_samples_takes_none_from_the_others() -> None:
    """Their spread over images stands; a sample that another seed lacks is left out."""
    draw = np.random.default_rng(0)
    values = 0.1 * draw.normal(size=(200, 1)) + 1e-3 * draw.normal(size=(200, 4))
    lacking = values.copy()
    lacking[1:, 3] = np.nan
    whole, part = estimate_samples(values).half, estimate_samples(lacking).half
    assert whole is not None and part == pytest.approx(whole, rel=0.01)
    lacking[7, 0] = np.nan
    assert estimate_samples(lacking).half == pytest.approx(whole, rel=0.02)


def coverage(of_seeds: float, of_images: float, of_both: float) -> tuple[float, float]:
    """Return how often intervals over seeds alone, and over both, hold the true mean, 0."""
    draw = np.random.default_rng(5)
    alone = both = 0
    for _ in range(TRIED):
        values = of_seeds * draw.normal(size=(SEEDS, 1)) + of_images * draw.normal(size=IMAGES)
        values = values + of_both * draw.normal(size=(SEEDS, IMAGES))
        times = draw.multinomial(IMAGES, [1 / IMAGES] * IMAGES, 50)
        samples = np.concatenate([values.mean(1)[None], times @ values.T / IMAGES])
        for number, found in enumerate((estimate_samples(samples[:1]), estimate_samples(samples))):
            assert found.mean is not None and found.half is not None
            holds = abs(found.mean) < found.half
            alone, both = alone + (holds and number == 0), both + (holds and number == 1)
    return alone / TRIED, both / TRIED


def test_an_interval_over_seeds_alone_does_not_hold_for_other_images() -> None:
    """Images that are alike in all seeds: it misses most of the time, the crossed one does not."""
    alone, both = coverage(0.02, 1.0, 0.3)
    assert alone < 0.6
    assert both > 0.92


@pytest.mark.parametrize("parts", [(0.2, 1.0, 1.0), (1.0, 1.0, 1.0), (0.0, 0.0, 1.0)])
def test_crossed_intervals_hold(
    parts: tuple[float, float, float],
) -> None:
    """Whichever varies most; where all is in neither, the double counting is at its worst."""
    _, both = coverage(*parts)
    assert both > 0.92


def test_the_part_of_the_images_is_no_wider_than_their_standard_error() -> None:
    """Seeds alike: 1.96 sd / sqrt(T), and Student's part nothing."""
    values = np.random.default_rng(2).normal(size=400)
    cells = rows("a", "b", "c", bits=float(values.mean()))
    images = vectors("a", *values) | vectors("b", *values) | vectors("c", *values)
    half = estimate_samples(measure_rows(cells, images)[..., POSITIONS[BITS]]).half
    assert half == pytest.approx(1.96 * values.std() / 20, rel=0.15)
