"""Rows of text from the numbers that were read."""

from collections.abc import Callable
from dataclasses import replace

from fedcel.settings import Settings
from sims.report import tables
from sims.report.records import Result, Run
from sims.report.summary import Summary
from sims.report.text import NOTHING


def test_details_in_their_own_columns(outcome: Callable[..., Result]) -> None:
    """Each number under its name, means over seeds, a dash where it was not measured."""
    keys = {"answer_bits": 0.125, "gaussianity_gap_bits": 1.25, "gaussianity_direction_bits": 0.5}
    more = {"gaussianity_kurtosis": 2.5, "within_class_spread": 0.0625}
    first = outcome(**keys, **more, between_client_spread=0.001)
    second = outcome(**keys, **more, between_client_spread=0.002)
    runs = tuple(Run("r", Settings(), (), result, (), {}) for result in (first, second))
    one = Summary(variant="a", label="a", noise=0.3, runs=runs)
    table = tables.details([one, replace(one, noise=None, runs=())])
    assert len(set(table.head)) == len(table.head)
    assert dict(zip(table.head, table.rows[0], strict=True)) == {
        "variant": "a",
        "noise σ": "0.3",
        "answers alone, bits": "0.12",
        "bits beyond label": "2.00",
        "certificate beyond label, bits": "2.25",
        "negentropy, bits": "1.25",
        "of it in single directions": "0.50",
        "excess kurtosis": "2.5",
        "spread within classes, z²": "0.0625",
        "between clients, z²": "0.0015",
    }
    assert set(table.rows[1][1:]) == {NOTHING}
