"""Logs as they were before a command changed them."""

import logging

import pytest


@pytest.fixture(autouse=True)
def keep_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take back what a service's start sets: its handler writes to the error stream of one test."""
    for name in ("fedcel.service", "uvicorn"):
        logger = logging.getLogger(name)
        for attribute in ("handlers", "propagate", "level"):
            monkeypatch.setattr(logger, attribute, getattr(logger, attribute))
