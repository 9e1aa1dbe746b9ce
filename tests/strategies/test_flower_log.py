"""What of Flower's log is shown, and how long it is."""

import logging

import pytest
from flwr.app import ArrayRecord
from flwr.common.logger import log

from fedcel.errors import MAX_TEXT
from strategies.flower_log import conclude_log, filter_log, show_progress
from tests.strategies.grid import FakeGrid, strategy

LOGGER = logging.getLogger("flwr")


@pytest.fixture(autouse=True)
def passing(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep what passes the filters, from debugging lines on."""
    monkeypatch.setattr(LOGGER, "filters", [])
    monkeypatch.setattr(LOGGER, "propagate", True)
    caplog.set_level(logging.DEBUG, "flwr")


def messages(caplog: pytest.LogCaptureFixture) -> str:
    return "\n".join(record.getMessage() for record in caplog.records)


def test_rounds_of_a_resumed_run_are_counted_from_its_first(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Flower's own loop over two rounds after the tenth; nothing is said of a draw of its own."""
    instance = strategy(clients=3)
    instance.configure_train = lambda *_: []  # type: ignore[method-assign]
    instance.aggregate_train = lambda *_: (None, None)  # type: ignore[method-assign]
    instance.configure_evaluate = lambda *_: []  # type: ignore[method-assign]
    grid = FakeGrid([])
    with filter_log(), filter_log(first_round=10):  # an engine's, and that of the ServerApp
        instance.start(grid, ArrayRecord(), num_rounds=2, timeout=1.0)  # type: ignore[arg-type]
    text = messages(caplog)
    assert "[ROUND 11/12]" in text and "[ROUND 12/12]" in text
    assert "Number of rounds: 12" in text and "Clients: 3 of 3 in a round" in text
    assert "Minimum available" not in text and "Final results" not in text
    caplog.clear()
    with filter_log():
        instance.start(grid, ArrayRecord(), num_rounds=2, timeout=1.0)  # type: ignore[arg-type]
    assert "[ROUND 1/2]" in messages(caplog) and "Final results" in messages(caplog)


def test_long_texts_are_cut_in_the_middle(caplog: pytest.LogCaptureFixture) -> None:
    """Messages, arguments and tracebacks: megabytes become two thousand characters."""
    long = "begin " + "x" * 5_000_000 + " end"
    with filter_log():
        log(logging.ERROR, long)
        log(logging.ERROR, "a client: %s", ValueError(long))
        try:
            raise ValueError(long)
        except ValueError as error:
            log(logging.ERROR, "it raised", exc_info=error)
        log(logging.ERROR, "a lone surrogate \ud800 and 100 %")
    formatted = [logging.Formatter().format(record) for record in caplog.records]
    assert all(len(text) < MAX_TEXT + 100 for text in formatted)
    assert all("end" in text and "characters left out" in text for text in formatted[:3])
    assert "Traceback" in formatted[2]
    assert formatted[3] == "a lone surrogate \\ud800 and 100 %"


def test_a_quiet_log_has_warnings_and_progress_alone(caplog: pytest.LogCaptureFixture) -> None:
    """The filter is gone after the block."""
    with filter_log(is_quiet=True):
        log(logging.INFO, "a detail")
        log(logging.WARNING, "Skipping: evaluation will be skipped")
        log(logging.WARNING, "a warning")
        show_progress("half of it")
    log(logging.INFO, "afterwards")
    assert messages(caplog).splitlines() == ["a warning", "half of it", "afterwards"]


def test_foreign_text_steers_no_terminal(caplog: pytest.LogCaptureFixture) -> None:
    """Neither in a message nor in a traceback; not after the app's last line, either."""
    with filter_log():
        log(logging.WARNING, "a client: %s", "\x1b[2J")
    conclude_log()
    log(logging.INFO, "")  # with which Flower ends a process
    try:
        raise ValueError("\x1b]0;x\x07")
    except ValueError:
        log(logging.ERROR, "ServerApp raised %s", "\x9b", exc_info=True)
    assert [record.getMessage() for record in caplog.records] == [
        r"a client: \x1b[2J",
        r"ServerApp raised \x9b",
    ]
    assert "\x1b" not in caplog.text and r"ValueError: \x1b]0;x\x07" in caplog.text
