"""What engines train is compared as it is: no leak is measured."""

import pytest


@pytest.fixture
def measured_leaks() -> None:
    """Ask for results with the leak of the run."""


@pytest.fixture(autouse=True)
def spare_leaks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the leak out of a run's result, which takes three times as long as its training."""
    if "measured_leaks" not in request.fixturenames:
        monkeypatch.setattr("fedcel.runs.evaluation.measure_run_leakage", lambda *_: {})
