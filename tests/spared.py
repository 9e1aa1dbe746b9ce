"""Work that is spared where a small run is trained for something else: it takes most of the time.

`tests/fedcel/runs` and `tests/fedcel/leakage` prove the measures, `tests/sims/report` the figures,
tests of whole processes all of them together.
"""

import pytest

EMPTY = b'<svg width="1" height="1"></svg>'
"""A figure that is not rendered."""


def spare_bound(patch: pytest.MonkeyPatch) -> None:
    """Leave images that nobody has seen without a bound of what a message tells about them."""
    patch.setattr("fedcel.runs.evaluation.bound_unseen_images", lambda *_: {})


def spare_leak(patch: pytest.MonkeyPatch) -> None:
    """Leave the whole leak out of a run's result."""
    patch.setattr("fedcel.runs.evaluation.measure_run_leakage", lambda *_: {})


def spare_figures(patch: pytest.MonkeyPatch) -> None:
    """Leave the figures of reports empty; they are drawn all the same."""
    patch.setattr("sims.report.chart.render_chart", lambda *_: EMPTY)
