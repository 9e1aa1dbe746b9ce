"""Identity of the process that makes Flower's messages: what Flower has no public name for.

`Message(content, node, type)`, which every strategy calls, asks which task of which run makes it,
and raises RuntimeError outside Flower's own processes. Flower answers for itself through
`flwr.supercore.task_identity.TaskIdentity` (flwr 1.41). Tests of strategies and federations that
are simulated without Flower's processes need the same, and nothing else that is not public.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import flwr
from flwr.app import Message, RecordDict

from fedcel.errors import EngineError

SERVER_NODE = RUN = 1
_IDENTITY = {"task_id": 1, "run_id": RUN, "node_id": SERVER_NODE}


@contextmanager
def allow_messages() -> Iterator[None]:
    """Let this process make messages within the block.

    Raises:
        EngineError: This Flower asks for something else.
    """
    try:
        identity = import_module("flwr.supercore.task_identity").TaskIdentity
    except (ImportError, AttributeError):  # a Flower that may do without
        identity = SimpleNamespace()
    before = {name: _read(identity, name) for name in _IDENTITY}
    for name, number in _IDENTITY.items():
        setattr(identity, name, number)
    try:
        _check_message()
        yield
    finally:
        for name, value in before.items():
            setattr(identity, name, value)


def _read(identity: Any, name: str) -> int | None:
    try:
        return getattr(identity, name, None)
    except RuntimeError:  # it is not set
        return None


def _check_message() -> None:
    try:
        Message(RecordDict(), SERVER_NODE, "train")
    except Exception as error:
        raise EngineError(
            f"Flower {flwr.__version__} makes no message outside its own processes: {error}; "
            "install flwr 1.41, or take engine 'local' with strategy.name 'posterior'"
        ) from error
