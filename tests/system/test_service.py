"""The service as a process of its own, whose end is that of the process that answers."""

import os
import signal
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from tests.clients.serving import wait_until
from tests.system.services import Process, serving


def find_worker(service: Process) -> int:
    pid = service.process.pid
    (worker,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(worker)


@pytest.mark.long  # two starts; tests/clients/service/test_worker.py kills the process, too
def test_a_service_ends_with_the_process_that_answers(tmp_path: Path, folder: Path) -> None:
    """With status 1 and the reason; killed itself, it leaves no process behind."""
    ledger = tmp_path / "ledger.db"
    with serving(folder, ledger) as service:
        wait_until(lambda: is_ready(service))
        os.kill(find_worker(service), signal.SIGKILL)
        assert service.process.wait(30) == 1
        assert '"answering ended"' in service.log.read_text()
        assert "ended by itself" in service.log.read_text()
    with serving(folder, ledger) as service:
        wait_until(lambda: is_ready(service))
        worker = find_worker(service)
        service.process.kill()
        wait_until(lambda: not is_running(worker))


def is_ready(service: Process) -> bool:
    with suppress(httpx.TransportError):
        return httpx.get(f"{service.url}/readyz").status_code == 200
    return False


def is_running(pid: int) -> bool:
    """Say whether there is such a process, which has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
