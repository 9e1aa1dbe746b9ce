"""What a client's failure says: short, printable, of the kind that it was."""

from typing import Any

import pytest
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from clients.flower.client_app import limit_failure
from fedcel.errors import MAX_TEXT, FailedError

CONTEXT = Context(1, 101, {"partition-id": 1}, RecordDict(), {})


def fail(error: BaseException) -> Any:
    """Return what a ClientApp raises whose training raises this."""
    app = ClientApp(mods=[limit_failure])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        raise error

    message = Message(RecordDict(), dst_node_id=101, message_type="train")
    with pytest.raises((FailedError, type(error))) as raised:
        app(message, CONTEXT)
    return raised


def test_an_ordinary_error_stays_what_it_is() -> None:
    """Its type and its text are the reason that Flower sends."""
    error = ValueError("no images")
    assert fail(error).value is error
    interrupt = KeyboardInterrupt()
    assert fail(interrupt).value is interrupt


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("much " * 1_000_000 + "in the end"), "ValueError: much much"),
        (ValueError("a \ud800"), r"ValueError: a \ud800"),
        (SystemExit(3), "SystemExit: 3"),
    ],
    ids=["long", "surrogate", "exit"],
)
def test_what_cannot_be_sent_becomes_a_short_error(error: BaseException, text: str) -> None:
    """It can be encoded, it ends as it ended, and its traceback leads to the client's code."""
    raised = fail(error)
    assert isinstance(raised.value, FailedError)
    said = str(raised.value)
    assert said.startswith(text) and len(said.encode()) < MAX_TEXT + 100
    assert said.endswith("in the end") == str(error).endswith("in the end")
    assert raised.traceback[-1].name == "train"
    assert raised.value.__cause__ is None and raised.value.__suppress_context__
