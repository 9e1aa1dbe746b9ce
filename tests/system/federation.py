"""A federation in real processes: a SuperLink, nodes with keys and images, users' commands."""

import json
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import httpx
import numpy as np
import pytest
from sklearn.datasets import load_digits

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
SCRIPTS = ROOT / "examples" / "deployment"
SITES, IMAGES = 3, 399  # nodes, and images of each
LIMIT = 900  # seconds until a step that never ends is given up; none is expected to take as long
HOST = "127.0.0.1"


class Federation(NamedTuple):
    """A SuperLink that runs, and the folders of those who meet there."""

    folder: Path
    port: int
    started: list["subprocess.Popen[bytes]"]
    host: str = HOST
    """Address of the SuperLink, for operators."""
    name: str = ""
    """Name of the SuperLink's host for nodes; "": its address."""
    find_words: Callable[[str], list[str]] = lambda name: []
    """Words in front of the command of a process, by its name."""

    def start(self, name: str, *command: object) -> "subprocess.Popen[bytes]":
        """Start a process whose home and log are its own, in a group of its own."""
        home = self.folder / name
        home.mkdir(exist_ok=True)
        with (home / "log").open("wb") as log:
            process = subprocess.Popen(
                [*self.find_words(name), *map(str, command)],
                cwd=self.folder / "app",
                env=make_environment(home),
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.started.append(process)
        return process

    def flwr(self, name: str, *words: str) -> "subprocess.Popen[bytes]":
        """Start Flower's command with the connection `here` to this SuperLink."""
        home = self.folder / name
        home.mkdir(exist_ok=True)
        (home / "config.toml").write_text(
            f'[superlink.here]\naddress = "{self.host}:{self.port}"\n'
            f'root-certificates = "{self.folder}/pki/ca.crt"\n'
        )
        return self.start(name, BIN / "flwr", *words)

    def ask_flwr(self, name: str, *words: str) -> str:
        """Run Flower's command to its end; return what it said."""
        assert self.flwr(name, *words).wait(LIMIT) == 0, self.log(name)
        return self.log(name)

    def start_node(self, number: int, state: Path | None = None) -> "subprocess.Popen[bytes]":
        """Start a node with the example's script, on an address of its own where there is one."""
        site = self.folder / f"site-{number}"
        words = (site / "node.key", number, site / "own.npz", state or site / "state")
        host = find_address(number)
        link, ca = f"{self.name or self.host}:{self.port}", self.folder / "pki" / "ca.crt"
        script = SCRIPTS / "supernode.sh"
        return self.start(f"site-{number}", "sh", script, link, ca, *words, host, find_port(host))

    def start_link(self) -> None:
        """Start the SuperLink with the example's script; return once it answers."""
        host = "0.0.0.0" if self.name else self.host
        words = (self.folder / "pki", self.folder / "disk" / "link.db", host, self.port)
        usual = 'ulimit -Sn 1024; exec sh "$0" "$@"'  # what many systems allow a process
        link = self.start("link", "sh", "-c", usual, SCRIPTS / "superlink.sh", *words)

        def is_ready() -> bool:
            assert link.poll() is None, self.log("link")
            return self.is_healthy()

        wait_until(is_ready, lambda: self.log("link"))

    def is_healthy(self) -> bool:
        url = f"https://{self.host}:{self.port}/health"
        words = (*self.find_words("health"), sys.executable, str(SCRIPTS / "health.py"), url)
        return subprocess.run(words).returncode == 0

    def post(self, path: str, content: bytes) -> int:
        """Send the SuperLink a request of nobody; return the status of its answer."""
        trusted = ssl.create_default_context(cafile=str(self.folder / "pki" / "ca.crt"))
        url = f"https://{self.host}:{self.port}{path}"
        return httpx.post(url, content=content, verify=trusted, timeout=60).status_code

    def log(self, name: str) -> str:
        return (self.folder / name / "log").read_text(errors="replace")

    def start_run(
        self, name: str, run: Path, rounds: int, **settings: object
    ) -> "subprocess.Popen[bytes]":
        """Start a user's `flwr run` into a folder."""
        config = (
            f'out="{run}" data.source="npz" data.path="{self.folder}/server.npz" clients={SITES} '
            f'rounds={rounds} data.partition="iid" data.validation=150 data.auxiliary=150 '
            'data.test=200 prior.mode="fixed" '
            'cel.kind="cluster" cel.warm-up=0 cel.ramp=0.3 chain.burn-in=0.5'
        )
        config += "".join(f" {key}={value}" for key, value in settings.items())
        return self.flwr(name, "run", ".", "here", "--stream", "--run-config", config)

    def last_status(self) -> str:
        answer = self.ask_flwr("list", "ls", "here", "--limit", "1", "--format", "json")
        (status,) = re.findall(r'"status": "([\w:]+)"', answer)
        return str(status)

    def count_online(self) -> int:
        """Ask the SuperLink how many nodes are online."""
        answer = self.ask_flwr("nodes", "supernode", "list", "here", "--format", "json")
        return len(re.findall(r'"status": "online"', answer))


def make_environment(home: Path) -> dict[str, str]:
    """Return the environment of a process whose Flower home is `home`."""
    return {**os.environ, "FLWR_HOME": str(home), "PATH": f"{BIN}:{os.environ['PATH']}"}


def find_address(number: int) -> str:
    """Return a loopback address for each node, the common one where the system has no other."""
    address = f"127.0.0.{number + 2}"
    with socket.socket() as door:
        try:
            door.bind((address, 0))
        except OSError:
            return HOST
    return address


def find_port(host: str = HOST) -> int:
    with socket.create_server((host, 0)) as door:
        return int(door.getsockname()[1])


def wait_until(condition: Callable[[], object], logs: Callable[[], str]) -> None:
    """Wait until something is so; AssertionError with the logs when it never is."""
    limit = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < limit, logs()
        time.sleep(0.1)


def copy_app(folder: Path) -> None:
    """Copy what an operator has of this repository to `app`."""
    for name in ("fedcel", "strategies", "clients", "sims", "examples/deployment"):
        skip = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, folder / "app" / name, ignore=skip)
    for name in ("pyproject.toml", "LICENSE", "README.md"):
        shutil.copy(ROOT / name, folder / "app")


def prepare_folders(folder: Path, *names: str) -> None:
    """Write the app as it is bundled, certificates and keys, and each party's own images."""
    copy_app(folder)
    keys = [sys.executable, str(SCRIPTS / "certificates.py")]
    makers = [
        [*keys, "server", str(folder / name), "localhost", *names] for name in ("pki", "foreign")
    ]
    nodes = [*(f"site-{k}" for k in range(SITES)), "unknown"]
    makers += [[*keys, "node", str(folder / name)] for name in nodes]
    running = [subprocess.Popen(maker, stdout=subprocess.DEVNULL) for maker in makers]
    assert [maker.wait() for maker in running] == [0] * len(running)
    digits, order = load_digits(), np.random.default_rng(0).permutation(1797)
    x, y = digits.images[order] / 16, digits.target[order]
    np.savez(folder / "server.npz", x_train=x[:600], y_train=y[:600])
    for k in range(SITES):
        share = slice(600 + k * IMAGES, 600 + (k + 1) * IMAGES)
        np.savez(folder / f"site-{k}" / "own.npz", x_train=x[share], y_train=y[share])


@contextmanager
def open_federation(
    folder: Path,
    host: str = HOST,
    find_words: Callable[[str], list[str]] = lambda name: [],
    name: str = "",
) -> Iterator[Federation]:
    """Start a SuperLink with the example's script, register all keys; end all that was started.

    `host` is its address for operators, `name` that of its host for nodes; `find_words` gives what
    is in front of a process's command.
    """
    prepare_folders(folder, host, *filter(None, [name]))
    (folder / "disk").mkdir(exist_ok=True)
    federation = Federation(folder, find_port(), [], host, name, find_words)
    try:
        federation.start_link()
        commands = []
        for k in range(SITES):
            words = ("register", f"{folder}/site-{k}/node.pub", "here", "--name", f"site-{k}")
            commands.append(federation.flwr(f"key-{k}", "supernode", *words))
        for k, command in enumerate(commands):
            assert command.wait(LIMIT) == 0, federation.log(f"key-{k}")
        yield federation
    finally:
        end_processes(federation)


def end_processes(federation: Federation) -> None:
    for process in federation.started:
        if process.poll() is None:  # the number of one that has ended may be another's by now
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    signal_processes(f"FLWR_HOME={federation.folder}/", signal.SIGKILL)


def signal_processes(variable: str, number: signal.Signals, words: str = "") -> int:
    """Send a signal to all processes whose environment has a variable like this.

    Args:
        variable: The beginning of `NAME=value`.
        number: The signal.
        words: What the command line must have, too.

    Returns:
        How many there were.
    """
    count = 0
    for entry in Path("/proc").glob("[0-9]*/environ"):
        try:
            if variable.encode() not in entry.read_bytes():
                continue
            if words.encode() in (entry.parent / "cmdline").read_bytes():
                os.kill(int(entry.parent.name), number)
                count += 1
        except (OSError, ProcessLookupError):
            continue
    return count


def read_events(run: Path) -> list[dict[str, object]]:
    path = run / "events.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def list_rejected(event: dict[str, object]) -> dict[int, str]:
    """Return the partitions that a round was without, and the reasons."""
    rejected = event["rejected"]
    assert isinstance(rejected, list)
    return {rejection["client"]: rejection["reason"] for rejection in rejected}


@contextmanager
def mount_small_disk(folder: Path, limit: str) -> Iterator[Path]:
    """Mount a disk with a limit of tmpfs; skip the test where that is not allowed."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", limit, "tmpfs", str(folder)]
    if subprocess.run(command, capture_output=True).returncode:
        pytest.skip("needs the right to mount a small disk")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@contextmanager
def fill_disk(folder: Path) -> Iterator[None]:
    """Leave no room on a disk within the block."""
    filler = folder / "filler"
    try:
        with suppress(OSError), filler.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        yield
    finally:
        filler.unlink()
