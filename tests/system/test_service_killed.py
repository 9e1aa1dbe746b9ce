"""The service under load, killed with SIGKILL and drained with SIGTERM: no answer is unpaid."""

import os
import random
import signal
import time
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from fedcel.privacy.ledger import Ledger
from sims.commands import ledger as operator
from tests.system.service_load import loaded, paid
from tests.system.services import Process, new_key, serving_forked

KILLS = int(os.environ.get("FEDCEL_KILLS", "10"))


def forked(run: Path, ledger: Path) -> AbstractContextManager[Process]:
    """Start a service on a free port."""
    log = ledger.with_name(f"log-{time.monotonic_ns()}")
    words = (run, "--ledger", ledger, "--port", "0", "--rate-limit", "1e6", "--allow-chance")
    return serving_forked(log, *words)


@pytest.mark.parametrize("kills", [2, pytest.param(KILLS, marks=pytest.mark.long)])
def test_no_answer_without_a_charge_though_it_is_killed(
    tmp_path: Path, folder: Path, kills: int
) -> None:
    """SIGKILL again and again under load; every answer that came out is in the ledger."""
    ledger, answered = tmp_path / "ledger.db", []
    key, chance = new_key(ledger), random.Random(0)
    for _ in range(kills):
        with forked(folder, ledger) as service, loaded([service.url], key) as found:
            time.sleep(0.3 + chance.random())
            service.process.kill()
        answered += found
    assert len(answered) > kills and len(set(answered)) == len(answered)
    assert set(answered) <= paid(ledger)


@pytest.mark.long
def test_two_processes_share_a_ledger_and_a_drain_loses_nothing(
    tmp_path: Path, folder: Path
) -> None:
    """100 epsilon make 25 answers between both, each charged; SIGTERM under load exits with 0."""
    ledger = tmp_path / "ledger.db"
    key = new_key(ledger, 100)
    with forked(folder, ledger) as one, forked(folder, ledger) as two:
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
                service.process.send_signal(signal.SIGTERM)
                assert service.process.wait(30) == 0
    assert more and set(answered) | set(more) == paid(ledger)
