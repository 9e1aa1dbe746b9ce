"""Means and intervals with known answers."""

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from fedcel import per_image
from fedcel.settings import burn_in_rounds
from sims.report.book import read_book
from sims.results.columns import BITS, MSE, POSITIONS, RIGHT_IMAGE, find_columns
from sims.results.intervals import Estimate, estimate

Make = Callable[..., Path]


def test_interval_by_hand() -> None:
    """1, 2, 3: sd 1, half-width 4.30265/sqrt(3) (Student, 2 degrees of freedom)."""
    found = estimate([1.0, 2.0, None, 3.0])
    assert found.mean == 2.0
    assert found.half == pytest.approx(4.302652730 / math.sqrt(3))


@pytest.mark.parametrize("values", [[1.0], [1.0, 2.0]])
def test_no_interval_below_three(values: list[float]) -> None:
    """One or two seeds give no interval."""
    assert estimate(values).half is None


def test_nothing() -> None:
    """No value is no mean."""
    assert estimate([None]) == Estimate()


def test_groups(make_bench: Make) -> None:
    """One summary a variant, seeds inside."""
    found = read_book(make_bench(seeds=3)).summaries
    assert [s.variant for s in found] == ["none", "cluster", "gated"]
    assert [row.seed for row in found[1].rows] == [0, 1, 2]
    assert found[1].measure(BITS).mean == pytest.approx(
        0.54 + 0.02
    )  # seeds 0, 1, 2 add 0, .02, .04
    assert found[1].rows[2].bits_beyond_label == pytest.approx(0.58)
    assert found[1].measure(RIGHT_IMAGE).mean == pytest.approx(0.2)
    (certificate,) = find_columns("certificate-bits-within-class")
    assert found[1].measure(certificate).mean == pytest.approx(0.54 + 0.02 + 0.25)


def test_intervals_are_over_images_too_where_their_values_were_kept(make_bench: Make) -> None:
    """Bits of sd 1 over 100 images, alike in all seeds: .196 beside the interval over seeds."""
    folder = make_bench(seeds=3)
    before = read_book(folder).summaries[1]
    alone = before.measure(BITS)
    hard = torch.linspace(-1, 1, 100) * 3**0.5
    rows = json.loads((folder / "bench.json").read_text())
    values = {f"{row['run']}|accuracy": torch.full((100,), row["accuracy"]) for row in rows}
    key = "bits-beyond-label"
    per_image.write_vectors(
        folder, values | {f"{row['run']}|{key}": row[key] + hard for row in rows}
    )
    found = read_book(folder).summaries[1]
    bits, again = found.measure(BITS), found.measured[1:, 2, POSITIONS[BITS.key]]
    assert alone.half is not None and bits.half is not None
    assert bits.half == pytest.approx(math.hypot(alone.half, 0.196), rel=0.1)
    assert bits.mean == alone.mean
    assert again.mean() == pytest.approx(found.rows[2].bits_beyond_label, abs=0.03)
    assert again.std(ddof=1) == pytest.approx(0.1, rel=0.2)
    assert found.measure(MSE) == before.measure(MSE)  # not kept image by image: over seeds alone


def test_validation_is_the_mean_after_burn_in(make_bench: Make) -> None:
    """A run that ended in burn-in counts its last round; the other its rounds 33 to 40."""
    folder = make_bench(seeds=2)
    (folder / "runs" / "1-0" / "events.jsonl").write_text(
        '{"round": 1, "accuracy": 0.1}\n{"round": 2, "accuracy": 0.5}\n'
    )
    run = read_book(folder)
    first = burn_in_rounds(run.summaries[0].runs[0].settings) + 1
    late = [0.948 * (1 - 0.8 * 0.85**n) for n in range(first, 41)]
    want = (0.5 + sum(late) / len(late)) / 2
    assert run.summaries[1].measure_validation() == pytest.approx(want)
