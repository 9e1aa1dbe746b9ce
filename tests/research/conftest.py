"""The synthetic bench of the report's tests; runs without the bound that takes longest."""

import pytest

from tests.sims.report.conftest import make_bench
from tests.spared import spare_bound

__all__ = ["make_bench"]


@pytest.fixture(autouse=True)
def spare_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spare the bound of images that nobody has seen."""
    spare_bound(monkeypatch)
