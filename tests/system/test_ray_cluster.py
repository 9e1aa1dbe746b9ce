"""A Ray cluster that is there already, by its address: more machines without another setting."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread

import pytest

from fedcel.settings import parse_settings
from sims.engines.simulate import simulate

ROOT = Path(__file__).parents[2]
ONE_BY_ONE = {"local.at-once": 1}
"""So that this process gives the bits of Ray's."""
MODULES = os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), str(ROOT)])
MARK = "FEDCEL_TEST_CLUSTER"
"""In the environment of the cluster's processes alone: the file that shows that they worked."""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[str]:
    """Start a node of Ray's own that serves until it is ended; return its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ray = [str(Path(sys.executable).with_name("ray")), "start", "--head", "--block"]
    extra = {"PYTHONPATH": MODULES, MARK: str(tmp_path / "mark"), "RAY_USAGE_STATS_ENABLED": "0"}
    with TemporaryDirectory(dir="/tmp") as short:  # a socket's path has 107 characters at most
        own = [f"--port={port}", "--num-cpus=2", "--include-dashboard=false", "--temp-dir", short]
        node = subprocess.Popen(
            [*ray, *own], cwd=ROOT, env={**os.environ, **extra}, stdout=subprocess.DEVNULL
        )
        try:
            reached(port, node)
            yield f"127.0.0.1:{port}"
        finally:
            node.terminate()
            node.wait(60)


def reached(port: int, node: subprocess.Popen[bytes]) -> None:
    """Wait until something listens."""
    end = time.monotonic() + 120
    while time.monotonic() < end and node.poll() is None:
        with socket.socket() as trial:
            if trial.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.2)
    pytest.fail(f"no Ray node at port {port}")


def start_second_node(address: str) -> subprocess.Popen[bytes]:
    """Start another node of the cluster, as a second machine would."""
    ray = [str(Path(sys.executable).with_name("ray")), "start", f"--address={address}", "--block"]
    environment = {**os.environ, "PYTHONPATH": MODULES, "RAY_USAGE_STATS_ENABLED": "0"}
    return subprocess.Popen(
        [*ray, "--num-cpus=2"],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )


@pytest.mark.long
def test_a_lost_machine_changes_no_bit(
    cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node is killed with all its processes in the middle: the other trains all clients."""
    monkeypatch.setenv("RAY_ADDRESS", cluster)
    second = start_second_node(cluster)
    raw = {"clients": 6, "rounds": 12, "local.steps": 20}

    def kill_in_the_middle() -> None:
        events = tmp_path / "ray" / "events.jsonl"
        limit = time.monotonic() + 240
        while time.monotonic() < limit:
            if events.exists() and len(events.read_text().splitlines()) >= 2:
                break
            time.sleep(0.05)
        os.killpg(second.pid, signal.SIGKILL)

    killer = Thread(target=kill_in_the_middle)
    killer.start()
    try:
        simulate(parse_settings({**raw, "engine": "ray"}), tmp_path / "ray")
    finally:
        killer.join()
        second.wait(60)
    simulate(parse_settings({**raw, **ONE_BY_ONE, "engine": "local"}), tmp_path / "local")
    assert '"rejected": [{' not in (tmp_path / "ray" / "events.jsonl").read_text()
    one, two = ((tmp_path / e / "model.safetensors").read_bytes() for e in ("local", "ray"))
    assert one == two
