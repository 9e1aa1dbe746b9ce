"""A Ray cluster that is there already, by its address: more machines without another setting."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from fedcel.data import Images, sources
from fedcel.settings import DataSettings, parse_settings
from sims.engines.simulate import simulate

ROOT = Path(__file__).parents[2]
MARK = "FEDCEL_TEST_CLUSTER"
"""In the environment of the cluster's processes alone: the file that shows that they worked."""


def images(data: DataSettings) -> tuple[Images, None]:
    """Return the digits, and leave a mark where the cluster's processes read them."""
    if MARK in os.environ:
        Path(os.environ[MARK]).write_text(str(os.getpid()))
    return sources.read_source(DataSettings()).train, None


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[str]:
    """Start a node of Ray's own that serves until it is ended; return its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ray = [str(Path(sys.executable).with_name("ray")), "start", "--head", "--block"]
    extra = {"PYTHONPATH": str(ROOT), MARK: str(tmp_path / "mark"), "RAY_USAGE_STATS_ENABLED": "0"}
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


@pytest.mark.long
def test_clients_train_on_the_cluster_of_ray_address(
    cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its processes read the images; the model is the loop's to the bit."""
    monkeypatch.setenv("RAY_ADDRESS", cluster)
    raw = {"data.source": f"{__name__}:images", "clients": 2, "rounds": 2, "local.steps": 2}
    for engine in ("loop", "ray"):
        assert not (tmp_path / "mark").exists()
        simulate(
            parse_settings({**raw, "engine": engine, "privacy.epsilons": "4"}), tmp_path / engine
        )
    assert (tmp_path / "mark").exists()
    one, two = ((tmp_path / e / "model.safetensors").read_bytes() for e in ("loop", "ray"))
    assert one == two
