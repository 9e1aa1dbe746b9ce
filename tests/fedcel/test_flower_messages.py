"""What is used of Flower and Ray that has no public name, or is no documented value."""

import inspect

import pytest
from flwr.app import Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid
from flwr.supercore import task_identity
from flwr.supercore.differential_privacy import KEY_CLIPPING_NORM

from clients.flower.client_app import CLIPPING_NORM
from fedcel.errors import EngineError
from fedcel.flower_messages import allow_messages
from sims.engines.simulated_grid import CLIENT_APP_RAISED, InMemoryGrid


def is_refused() -> bool:
    """Whether Flower refuses to make a message here."""
    try:
        Message(RecordDict(), 1, "train")
    except RuntimeError:
        return True
    return False


def test_messages_need_an_identity_and_have_it_within_the_block() -> None:
    """Blocks may be nested; what was before is there afterwards."""
    assert is_refused(), (
        "This Flower makes messages in any process: delete fedcel/flower_messages.py, "
        "and the uses of allow_messages."
    )
    with allow_messages():
        with allow_messages():
            pass
        assert not is_refused()
    assert is_refused()


def test_another_flower_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that asks for an identity and takes it elsewhere."""
    monkeypatch.delattr(task_identity, "TaskIdentity")
    refusal = pytest.raises(EngineError, match="Flower .* makes no message .*install flwr 1.41")
    with refusal, allow_messages():
        pass


def test_flower_s_grid_asks_for_what_ours_have() -> None:
    """A method that a new Flower adds has to be written."""
    missing = inspect.isabstract(InMemoryGrid) and InMemoryGrid.__abstractmethods__
    assert not missing, (
        f"flwr.serverapp.Grid now asks for {missing}: add them to SimulatedGrid in "
        "sims/engines/simulated_grid.py, then to its subclasses."
    )
    assert issubclass(InMemoryGrid, Grid)


def test_flower_s_codes_and_keys_are_ours() -> None:
    """They travel in messages, and are constants of modules that are not public."""
    assert ErrorCode.CLIENT_APP_RAISED_EXCEPTION == CLIENT_APP_RAISED, (
        "Flower gave its error of a ClientApp that raised another code: change CLIENT_APP_RAISED "
        "in sims/engines/simulated_grid.py."
    )
    assert KEY_CLIPPING_NORM == CLIPPING_NORM, (
        "Flower's client-side clipping sends its norm by another key: change CLIPPING_NORM in "
        "clients/flower/client_app.py."
    )
