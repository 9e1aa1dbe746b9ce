"""Flower's log where it runs here: no wrong lines, no endless ones."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from traceback import format_exception

from fedcel.errors import escape_controls, shorten_text

log = logging.getLogger("flwr").log
"""Logs a line as Flower does."""
PROGRESS = "progress"
"""A record with this attribute is shown where all else below a warning is not."""
_EXPECTED = "evaluation will be skipped"
_COUNTED = ("[ROUND %s/%s]", "\t├── Number of rounds: %d")
"""Flower's lines about rounds."""
_RESULTS = "Final results:"
"""After it come metrics by round, in Flower's count."""


@contextmanager
def filter_log(*, is_quiet: bool = False, first_round: int = 0) -> Iterator[None]:
    """Correct what Flower logs within the block.

    Long texts are cut, since a client's error may bring megabytes, and what would steer a terminal
    is escaped. In a run that goes on, rounds are counted from `first_round`, the last complete one.
    One notice is left out: that nodes are not asked to evaluate each round, since the server scores
    on validation images. With `is_quiet` only warnings and the lines of `show_progress` stay.
    """
    is_over = False

    def correct_record(record: logging.LogRecord) -> bool:
        nonlocal is_over
        is_warning = record.levelno >= logging.WARNING
        if first_round and record.msg in _COUNTED and isinstance(record.args, tuple):
            record.args = tuple(int(str(number)) + first_round for number in record.args)
        is_over = is_over or record.msg == _RESULTS
        if (
            (is_quiet and not is_warning and not hasattr(record, PROGRESS))
            or _EXPECTED in str(record.msg)
            or (first_round and is_over and not is_warning)
        ):
            return False
        _correct_text(record, shorten_text)
        return True

    logger = logging.getLogger("flwr")
    logger.addFilter(correct_record)
    try:
        yield
    finally:
        logger.removeFilter(correct_record)


def show_progress(text: str) -> None:
    """Log a line about work that takes long, for simulations, too."""
    logging.getLogger("flwr").info(text, extra={PROGRESS: True})


def conclude_log() -> None:
    """Let the app's own last line end the log, for as long as this process lives.

    Flower ends a process with an empty line, or with the traceback of an error whose text may be
    anybody's.
    """

    def correct_record(record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING and not record.getMessage().strip():
            return False
        _correct_text(record, escape_controls)
        return True

    logging.getLogger("flwr").addFilter(correct_record)


def _correct_text(record: logging.LogRecord, correct: Callable[[str], str]) -> None:
    text = record.getMessage()
    if (corrected := correct(text)) != text:  # another filter may have to know what Flower says
        record.msg, record.args = corrected, None
    if record.exc_info and record.exc_info[1] is not None:
        record.exc_text = correct("".join(format_exception(record.exc_info[1])).rstrip())
