"""Independent work of a script in several processes, with its progress."""

from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from typing import TypeVar

from sims.parallel_jobs import run_items, time_call
from sims.progress import estimate_left, print_line

FEWEST_SECONDS = 0.1
"""An item that took less was done already, and says nothing of the time of others."""
Item = TypeVar("Item")


def carry_out(
    function: Callable[[Item], str], items: Sequence[Item], jobs: int, activity: str
) -> None:
    """Call a function with each item; print the names that it returns, and the time left.

    Args:
        function: Pickled where there are several processes.
        items: Independent of each other.
        jobs: Items at once.
        activity: Word before the name of an item that ended.
    """
    seconds: list[float] = []
    with closing(run_items(partial(time_call, function), items, jobs)) as running:
        for number, (name, spent) in enumerate(running, 1):
            if spent > FEWEST_SECONDS:
                seconds.append(spent)
            remaining = estimate_left(seconds, len(items) - number, jobs)
            print_line(f"{activity} {name} ({number}/{len(items)}){remaining}")
