"""The log's lines."""

import io
import json
import logging

from clients.service.monitoring import JsonLines


def lines(record: logging.LogRecord) -> dict[str, object]:
    """Return a formatted record."""
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
    """Of the web server only the level and the fact are kept."""
    record = logging.LogRecord("uvicorn.error", 40, "x.py", 1, "GET /?key=secret", None, None)
    assert lines(record)["event"] == "server"
    assert "secret" not in json.dumps(lines(record))
