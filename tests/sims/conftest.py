"""Figures are drawn in all tests, and rendered in those of reports."""

import pytest

EMPTY = b'<svg width="1" height="1"></svg>'


@pytest.fixture(autouse=True)
def leave_figures_empty(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spare the text layout of figures, which takes a second a report."""
    if "tests/sims/report/" not in request.node.nodeid:
        monkeypatch.setattr("sims.report.figures.render_figure", lambda *_: EMPTY)
