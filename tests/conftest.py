"""One thread in tests: threads that fight over cores make them slow and noisy."""

import gc
import os
import signal
from collections.abc import Iterator

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")
# Ray's workers yield to everything else by default: beside other tests they would hardly run.
os.environ.setdefault("RAY_worker_niceness", "0")

import jaxtyping
import pytest
import torch
from hypothesis import settings

from tests.fedcel.privacy.ledger.postgres import PostgresServer, find_memory, serve_postgres

torch.set_num_threads(1)
if memory := find_memory():  # ledgers and runs wait for the disk at each write
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", memory)
# A shell without job control starts what it leaves behind with Ctrl-C ignored, which processes
# started by tests inherit; a handler they do not.
signal.signal(signal.SIGINT, signal.default_int_handler)
settings.register_profile("fedcel", deadline=None, max_examples=25, derandomize=True)
settings.load_profile("fedcel")


@pytest.fixture(scope="session", autouse=True)
def image_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keep decoded images of this session in a folder of its own."""
    os.environ["FEDCEL_CACHE"] = str(tmp_path_factory.mktemp("decoded"))


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """Yield a server of PostgreSQL; tests of it are skipped where it is not installed."""
    with serve_postgres(find_memory()) as server:
        yield server


@pytest.fixture(scope="session", autouse=True)
def keep_priority() -> Iterator[None]:
    """Let what a page learns in the background run like the tests beside it: else it starves."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.setpriority", lambda *_: None)
        yield


@pytest.fixture
def unchecked_types(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let calls of wrong types reach the code, also where the types of every call are checked."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


@pytest.fixture(autouse=True)
def hide_gpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide a GPU from all tests but those of one: its sums are not the processor's to the bit."""
    if not request.node.get_closest_marker("gpu"):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


LONGEST_FIRST = ("tests/system/", "tests/sims/", "tests/research/", "tests/strategies/")
"""Folders with tests of whole processes and runs."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run whole processes first: at the end each would keep one worker busy and the others idle."""

    def place(item: pytest.Item) -> int:
        names = [folder in item.nodeid for folder in LONGEST_FIRST]
        return names.index(True) if any(names) else len(names)

    items.sort(key=place)
    gc.freeze()  # what was imported stays: the collector need not look through it again and again
