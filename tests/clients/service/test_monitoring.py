"""The log's lines."""

import io
import json
import logging
from pathlib import Path

import uvicorn

from clients.service.monitoring import SERVER_MESSAGES, JsonLines


def lines(record: logging.LogRecord) -> dict[str, object]:
    line: dict[str, object] = json.loads(JsonLines().format(record))
    return line


def test_an_exception_tells_its_place_and_not_its_words() -> None:
    """Words may repeat what was sent."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLines())
    logger = logging.Logger("fedcel.service")
    logger.addHandler(handler)
    try:
        float("secret feature")
    except ValueError as error:
        logger.error("failed", exc_info=error, extra={"client": "phone"})
    text = stream.getvalue()
    assert "secret" not in text
    line = json.loads(text)
    assert line["error"] == "ValueError"
    assert line["client"] == "phone"
    assert line["at"][0].startswith("test_monitoring.py:")


def test_other_packages_may_not_speak_freely() -> None:
    """Of the web server a line has the place; its fixed words where they are known."""
    record = logging.LogRecord("uvicorn.error", 40, "/a/x.py", 1, "GET /?key=secret", None, None)
    assert lines(record)["event"] == "server" and lines(record)["at"] == ["x.py:1"]
    assert "secret" not in json.dumps(lines(record))
    text = "Cancel %s running task(s), timeout graceful shutdown exceeded"
    record = logging.LogRecord("uvicorn.error", 40, "x.py", 1, text, (3,), None)
    assert lines(record)["message"] == text.replace("%s", "3") and "at" not in lines(record)


def test_the_fixed_words_are_those_of_the_web_server() -> None:
    """A release that words them anew is noticed."""
    source = "".join(path.read_text() for path in Path(uvicorn.__file__).parent.rglob("*.py"))
    assert [text for text in SERVER_MESSAGES if text.strip() not in source] == []
