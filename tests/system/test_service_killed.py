"""The service under load, killed with SIGKILL and drained with SIGTERM: no answer is unpaid."""

import multiprocessing
import os
import random
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest

from fedcel.privacy.ledger import Ledger
from sims.commands import ledger as operator
from tests.clients.serving import child
from tests.system.service_load import loaded, paid
from tests.system.services import new_key

KILLS = int(os.environ.get("FEDCEL_KILLS", "10"))


@pytest.fixture(scope="module")
def fork() -> ForkServerContext:
    """Starts processes that have all modules already, seconds sooner than an interpreter does."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.clients.serving"])
    return context


class Forked(NamedTuple):
    """A service in a process of its own that began with all modules loaded."""

    process: BaseProcess
    url: str


@contextmanager
def forked(fork: ForkServerContext, run: Path, ledger: Path) -> Iterator[Forked]:
    """Start a service on a free port; kill it in the end if it still runs."""
    with socket.create_server(("127.0.0.1", 0)) as door:
        port = door.getsockname()[1]
    log = ledger.with_name(f"log-{port}.jsonl")
    process = fork.Process(target=child, args=(run, ledger, port, log), daemon=True)
    process.start()
    try:
        url, limit = f"http://127.0.0.1:{port}", time.monotonic() + 60
        while not up(url):
            assert process.is_alive() and time.monotonic() < limit, log.read_text()
            time.sleep(0.05)
        yield Forked(process, url)
    finally:
        process.kill()
        process.join()


def up(url: str) -> bool:
    try:
        return httpx.get(f"{url}/readyz", timeout=20).status_code == 200
    except httpx.TransportError:
        return False


@pytest.mark.parametrize("kills", [2, pytest.param(KILLS, marks=pytest.mark.long)])
def test_no_answer_without_a_charge_though_it_is_killed(
    tmp_path: Path, folder: Path, fork: ForkServerContext, kills: int
) -> None:
    """SIGKILL again and again under load; every answer that came out is in the ledger."""
    ledger, answered = tmp_path / "ledger.db", []
    key, chance = new_key(ledger), random.Random(0)
    for _ in range(kills):
        with forked(fork, folder, ledger) as service, loaded([service.url], key) as found:
            time.sleep(0.3 + chance.random())
            service.process.kill()
        answered += found
    assert len(answered) > kills and len(set(answered)) == len(answered)
    assert set(answered) <= paid(ledger)


@pytest.mark.long
def test_two_processes_share_a_ledger_and_a_drain_loses_nothing(
    tmp_path: Path, folder: Path, fork: ForkServerContext
) -> None:
    """100 epsilon make 25 answers between both, each charged; SIGTERM under load exits with 0."""
    ledger = tmp_path / "ledger.db"
    key = new_key(ledger, 100)
    with forked(fork, folder, ledger) as one, forked(fork, folder, ledger) as two:
        with loaded([one.url, two.url], key, threads=2) as answered:
            limit = time.monotonic() + 60
            with Ledger.open(ledger) as found:
                while found.balance("phone").remaining and time.monotonic() < limit:
                    time.sleep(0.1)
        assert len(answered) == 25 and set(answered) == paid(ledger)
        operator.grant_client(ledger, "phone", 1e6)
        with loaded([one.url, two.url], key) as more:
            time.sleep(1)
            for service in (one, two):
                service.process.terminate()
                service.process.join(30)
                assert service.process.exitcode == 0
    assert more and set(answered) | set(more) == paid(ledger)
