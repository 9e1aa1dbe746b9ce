"""What a run on one machine is tested for is seldom its bounds and figures."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.sims.browsing import open_browser
from tests.spared import spare_bound, spare_figures


@pytest.fixture(autouse=True)
def spare_work(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spare them in all tests but those of reports."""
    if "tests/sims/report/" not in request.node.nodeid:
        spare_bound(monkeypatch)
        spare_figures(monkeypatch)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A Chromium without a window."""
    with open_browser() as chromium:
        yield chromium
