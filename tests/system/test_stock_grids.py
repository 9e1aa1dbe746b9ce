"""All strategies of the installed Flower on Ray and in real processes: the bits of one process."""

import json
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation

from clients import make_client_app
from fedcel.flower_messages import allow_messages
from fedcel.settings import parse_settings
from sims.engines.simulated_grid import InMemoryGrid
from tests.strategies.stock_matrix import STOCK, list_differences, print_outcomes, train_all
from tests.system.federation import (
    BIN,
    LIMIT,
    ROOT,
    Federation,
    end_processes,
    find_port,
    wait_until,
)

NODES = 7  # Bulyan's least number for one hostile client
ROUNDS = 1  # each takes a process a node


def train_in_memory(folder: Path, **change: Any) -> dict[str, str]:
    settings = parse_settings({**STOCK, **change})
    with allow_messages():
        grid = InMemoryGrid(make_client_app(settings), settings.clients)
        return train_all(grid, folder, **change)


@pytest.mark.long
def test_ray_gives_the_bits_of_one_process(tmp_path: Path) -> None:
    """Whatever the order in which simulated nodes answer, for drawn clients too."""
    change: dict[str, Any] = {"clients": 8, "clients-per-round": NODES, "rounds": 2}
    outcomes: dict[str, str] = {}
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        outcomes.update(train_all(grid, tmp_path / "ray", **change))

    with allow_messages(), warnings.catch_warnings():  # a simulation leaves its identity behind
        warnings.filterwarnings("ignore", "Tip:", FutureWarning)
        run_simulation(
            app,
            make_client_app(parse_settings({**STOCK, **change})),
            8,
            backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
        )
    print_outcomes(outcomes)
    assert list_differences(outcomes, train_in_memory(tmp_path / "local", **change)) == []


@contextmanager
def deploy(folder: Path) -> Iterator[Federation]:
    """Start a SuperLink and nodes without keys; end all that was started."""
    app = folder / "app"
    for name in ("fedcel", "strategies", "clients", "sims"):
        shutil.copytree(ROOT / name, app / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "tests" / "strategies" / "stock_matrix.py", app / "sims")
    for name in ("LICENSE", "README.md"):
        shutil.copy(ROOT / name, app)
    project = (ROOT / "pyproject.toml").read_text()
    (app / "pyproject.toml").write_text(
        project.replace("strategies.server_app:app", "sims.stock_matrix:app")
    )
    federation = Federation(folder, find_port(), [])
    link = f"127.0.0.1:{federation.port}"
    try:
        words = ("--insecure", "--host", "127.0.0.1", "--port", federation.port)
        options = (*words, "--disable-runtime-dependency-installation")
        federation.start("link", BIN / "flower-superlink", *options)
        wait_until(lambda: is_healthy(f"http://{link}/health"), lambda: federation.log("link"))
        for k in range(NODES):
            words = ("--insecure", "--superlink", link, "--port", find_port())
            node = ("--node-config", f"partition-id={k}")
            federation.start(f"node-{k}", BIN / "flower-supernode", *words, *node)
        yield federation
    finally:
        end_processes(federation)


def is_healthy(url: str) -> bool:
    try:
        return httpx.get(url, timeout=20).status_code == 200
    except httpx.TransportError:
        return False


@pytest.mark.long
def test_a_deployment_gives_the_bits_of_one_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A SuperLink, nodes in processes of their own: node ids are random, replies come late."""
    monkeypatch.setenv("FLWR_SUPEREXEC_TASK_POLL_INTERVAL", "0.1")
    out = tmp_path / "out"
    config = {**STOCK, "clients": NODES, "rounds": ROUNDS}
    words = " ".join(f"{key}={json.dumps(value)}" for key, value in config.items())
    with deploy(tmp_path) as federation:
        home = tmp_path / "user"
        home.mkdir()
        (home / "config.toml").write_text(
            f'[superlink.here]\naddress = "127.0.0.1:{federation.port}"\ninsecure = true\n'
        )
        command = ("run", ".", "here", "--stream", "--run-config", f'out="{out}" {words}')
        user = federation.start("user", BIN / "flwr", *command)
        assert user.wait(4 * LIMIT) == 0 and (out / "outcomes.json").exists(), federation.log(
            "user"
        )
    outcomes = json.loads((out / "outcomes.json").read_text())
    print_outcomes(outcomes)
    local = train_in_memory(tmp_path / "local", clients=NODES, rounds=ROUNDS)
    assert list_differences(outcomes, local) == []
