"""Flower wants to know which task a message is made in; a test is none."""

from collections.abc import Iterator

import pytest
from flwr.supercore.task_identity import TaskIdentity


@pytest.fixture(autouse=True)
def task() -> Iterator[None]:
    """Give the messages of a test an identity."""
    for name in ("task_id", "run_id", "node_id"):
        setattr(TaskIdentity, name, 1)
    yield
    for name in ("task_id", "run_id", "node_id"):
        setattr(TaskIdentity, name, None)
