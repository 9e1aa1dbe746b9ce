"""Work in one process; in several it is tested where it is used, each costs an import of torch."""

import math
from collections.abc import Generator

from sims.processes import work


def test_every_item_once() -> None:
    """In the order given."""
    assert list(work(math.sqrt, [4.0, 9.0, 16.0], 1)) == [2.0, 3.0, 4.0]


def test_one_process_begins_an_item_when_it_is_asked_for() -> None:
    """So that what is done by then has been told."""
    begun: list[int] = []
    running: Generator[None, None, None] = work(begun.append, [1, 2], 1)
    next(running)
    assert begun == [1]
