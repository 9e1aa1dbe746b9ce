"""The page that follows a run or a bench while it goes on, and shows it afterwards."""

from sims.watch.bench_state import describe_bench, is_bench
from sims.watch.run_state import describe_run
from sims.watch.web import Following, create_app

__all__ = ["Following", "create_app", "describe_bench", "describe_run", "is_bench"]
