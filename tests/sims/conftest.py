"""What a run on one machine is tested for is seldom its bounds and figures."""

import pytest

from tests.spared import spare_bound, spare_figures


@pytest.fixture(autouse=True)
def spare_work(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spare them in all tests but those of reports."""
    if "tests/sims/report/" not in request.node.nodeid:
        spare_bound(monkeypatch)
        spare_figures(monkeypatch)
