"""The synthetic bench of the report's tests; runs without the bound that takes longest."""

from tests.sims.report.conftest import make_bench
from tests.strategies.conftest import spare_work

__all__ = ["make_bench", "spare_work"]
