"""Replicas of the private service on Ray Serve, as examples/deployment/ray_serve.py runs them."""

import os
import signal
import socket
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
import psutil
import pytest

from tests.system.service_load import loaded, paid
from tests.system.services import new_key, stored

pytestmark = [
    pytest.mark.long,
    # Ray Serve's own use of pydantic.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
FOLDER = Path(__file__).parents[2] / "examples" / "deployment"
SECONDS = 60


@pytest.fixture
def url(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Start Ray and its door to HTTP; return the address."""
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    ray, serve = import_module("ray"), import_module("ray.serve")
    with socket.create_server(("127.0.0.1", 0)) as door:
        port = door.getsockname()[1]
    with TemporaryDirectory(dir="/tmp") as short:  # a socket's path has 107 characters at most
        ray.init(
            num_cpus=2,
            include_dashboard=False,
            log_to_driver=False,
            runtime_env={"working_dir": str(FOLDER)},
            _temp_dir=short,
        )
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        yield f"http://127.0.0.1:{port}"
        serve.shutdown()
        ray.shutdown()


def test_a_killed_replica_is_replaced_and_no_answer_is_unpaid(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two replicas, one ended by SIGKILL under load; both answer again, and the ledger is exact."""
    monkeypatch.syspath_prepend(str(FOLDER))
    program, serve = import_module("ray_serve"), import_module("ray.serve")
    run, ledger = tmp_path / "run", tmp_path / "budget.db"
    stored(run)
    key = new_key(ledger)
    options = program.Options(run=run, ledger=str(ledger), rate=1e6, allow_chance=True)
    serve.run(program.build(options), name="fedcel")
    replicas = find_replicas()
    assert len(replicas) == 2
    with loaded([url], key) as before:
        time.sleep(1)
        os.kill(replicas.pop(), signal.SIGKILL)
        limit = time.monotonic() + SECONDS
        while len(find_replicas() - replicas) < 1 and time.monotonic() < limit:
            time.sleep(0.1)
    assert len(find_replicas()) == 2
    while httpx.get(f"{url}/readyz").status_code != 200 and time.monotonic() < limit:
        time.sleep(0.1)
    with loaded([url], key) as after:
        time.sleep(1)
    assert before and after
    assert set(before) | set(after) <= paid(ledger)


def find_replicas() -> set[int]:
    mark = "ray::ServeReplica:fedcel"
    return {
        process.pid
        for process in psutil.Process().children(recursive=True)
        if process.status() != psutil.STATUS_ZOMBIE and mark in " ".join(process.cmdline())
    }
