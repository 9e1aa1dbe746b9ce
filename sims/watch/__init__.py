"""The page that follows a run or a bench while it goes on, and shows it afterwards."""

from sims.watch.folder_state import describe_bench, describe_run, is_bench
from sims.watch.web import create_app, describe_folder

__all__ = ["create_app", "describe_bench", "describe_folder", "describe_run", "is_bench"]
