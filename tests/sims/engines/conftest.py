"""What engines train is compared as it is: no leak is measured."""

import pytest

from tests.spared import spare_leak


@pytest.fixture
def measured_leaks() -> None:
    """Ask for results with the leak of the run."""


@pytest.fixture(autouse=True)
def spare_leaks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spare the leak, which takes three times as long as a training."""
    if "measured_leaks" not in request.fixturenames:
        spare_leak(monkeypatch)
