"""`fedcel serve` takes a new run on SIGHUP, under load, and keeps the old one for a while."""

import re
import signal
import sqlite3
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import httpx
import numpy as np
import pytest

from clients.service import ServedModel
from tests.system.services import Process, new_key, serving, stored


def link(path: Path, target: Path) -> None:
    """Point a link elsewhere, at once."""
    spare = path.with_name("spare")
    spare.symlink_to(target)
    spare.rename(path)


def wait_for(service: Process, text: str, times: int = 1) -> None:
    """Wait until the service's log has a text so many times."""
    end = time.monotonic() + 60
    while service.log.read_text().count(text) < times:
        assert time.monotonic() < end, service.log.read_text()
        time.sleep(0.05)


@pytest.mark.long
def test_a_new_run_is_served_beside_the_old_one(tmp_path: Path) -> None:
    """A link is changed and SIGHUP sent: no question is lost; a broken run changes nothing."""
    models = [stored(tmp_path / f"v{seed}", seed=seed) for seed in (0, 1)]
    current, ledger, ended = tmp_path / "current", tmp_path / "ledger.db", Event()
    link(current, tmp_path / "v0")
    key = new_key(ledger)

    with serving(current, ledger) as service, httpx.Client(base_url=service.url) as http:

        def ask(model: ServedModel, value: float) -> int:
            headers = {
                "authorization": f"Bearer {key}",
                "content-type": "application/octet-stream",
                "idempotency-key": f"request-{time.monotonic_ns()}-{value}",
                "model-version": model.version,
            }
            content = np.full(8, value, "<f4").tobytes()
            return http.post("/v1/query", content=content, headers=headers).status_code

        def ask_on(first: int) -> list[int]:
            statuses: list[int] = []
            while not ended.is_set():
                statuses.append(ask(models[0], first + len(statuses) / 1e4))
            return statuses

        with ThreadPoolExecutor() as pool:
            asking = [pool.submit(ask_on, first) for first in range(2)]
            link(current, tmp_path / "v1")
            service.process.send_signal(signal.SIGHUP)
            wait_for(service, '"reloaded"')
            assert ask(models[1], 0.5) == 200
            (tmp_path / "broken").mkdir()
            link(current, tmp_path / "broken")
            service.process.send_signal(signal.SIGHUP)
            wait_for(service, '"reload refused"')
            ended.set()
            statuses = [status for future in asking for status in future.result()]
        assert len(statuses) > 10 and set(statuses) == {200}
        card = http.get("/v1/model", headers={"authorization": f"Bearer {key}"}).json()
        assert card["model"] == models[1].version
        assert card["expected"]["images"] == 400 and 0 <= card["expected"]["accuracy"] <= 1
        service.process.send_signal(signal.SIGTERM)
        assert service.process.wait(30) == 0


@pytest.mark.long
def test_a_signal_before_the_service_is_ready_is_acted_on(tmp_path: Path) -> None:
    """The run was read, the ledger is still waited for: the newest run is served all the same."""
    models = [stored(tmp_path / f"v{seed}", seed=seed) for seed in (0, 1)]
    current, ledger = tmp_path / "current", tmp_path / "ledger.db"
    link(current, tmp_path / "v0")
    key = new_key(ledger)
    lock = sqlite3.connect(ledger, isolation_level=None)
    lock.execute("BEGIN EXCLUSIVE")
    with serving(current, ledger) as service:
        assert '"started"' not in service.log.read_text()
        link(current, tmp_path / "v1")
        service.process.send_signal(signal.SIGHUP)
        time.sleep(0.2)
        lock.close()
        wait_for(service, '"reloaded"')
        headers = {"authorization": f"Bearer {key}"}
        card = httpx.get(f"{service.url}/v1/model", headers=headers).json()
        assert card["model"] == models[1].version
        assert "reload ignored" not in service.log.read_text()


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="it is read from /proc what a process catches")
def test_a_signal_before_the_run_is_read_does_not_end_the_process(tmp_path: Path) -> None:
    """It is kept, and the run read once more."""
    stored(tmp_path / "run")

    def send_early(process: "subprocess.Popen[str]") -> None:
        status = Path(f"/proc/{process.pid}/status")
        end = time.monotonic() + 30
        while not int(re.findall(r"SigCgt:\s*(\w+)", status.read_text())[0], 16) & 1:  # SIGHUP
            assert time.monotonic() < end
            time.sleep(0.001)
        process.send_signal(signal.SIGHUP)

    with serving(tmp_path / "run", tmp_path / "ledger.db", at_start=send_early) as service:
        wait_for(service, '"reload unchanged"')
