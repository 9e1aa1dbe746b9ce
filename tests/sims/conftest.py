"""What other tests prove is spared here: it takes longer than all else of a small run."""

import pytest

EMPTY = b'<svg width="1" height="1"></svg>'
"""A figure that is not rendered."""


def spare_figures_and_bounds(patch: pytest.MonkeyPatch) -> None:
    """Leave figures empty, and images that nobody has seen without a bound."""
    patch.setattr("sims.report.figures.render_figure", lambda *_: EMPTY)
    patch.setattr("fedcel.runs.evaluation.bound_unseen_images", lambda *_: {})


@pytest.fixture(autouse=True)
def spare_work(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spare it in all tests but those of reports."""
    if "tests/sims/report/" not in request.node.nodeid:
        spare_figures_and_bounds(monkeypatch)
