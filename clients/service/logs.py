"""The log: one JSON object a line; inputs, features, answers and keys never reach it."""

import json
import logging
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import TextIO

NAME = "fedcel.service"
TAKEN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "color_message"}


class JsonLines(logging.Formatter):
    """Formats a record, its `extra` fields, and where an exception arose but not its words.

    Words of an exception may repeat what was sent.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return one line."""
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, object] = {
            "time": f"{moment}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "event": record.getMessage() if record.name.startswith("fedcel") else "server",
        }
        line |= {k: v for k, v in vars(record).items() if k not in TAKEN}
        if record.exc_info and record.exc_info[0]:
            line |= {"error": record.exc_info[0].__name__, "at": list_frames(record.exc_info[2])}
        return json.dumps(line, default=repr)


def list_frames(trace: TracebackType | None) -> list[str]:
    """Return file and line of each frame."""
    found = []
    while trace:
        found.append(f"{Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}")
        trace = trace.tb_next
    return found


def configure_logs(stream: TextIO = sys.stderr) -> logging.Logger:
    """Send the service's log and the web server's to `stream`; return the service's."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLines())
    for name, level in ((NAME, logging.INFO), ("uvicorn", logging.WARNING)):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level)
    return logging.getLogger(NAME)
