"""The synthetic bench of the report's tests."""

from tests.sims.report.conftest import make_bench

__all__ = ["make_bench"]
