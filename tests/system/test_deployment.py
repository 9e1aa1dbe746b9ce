"""Flower's deployment in real processes: TLS, node keys, own data, a node and the server killed."""

import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import httpx
import numpy as np
import pytest
from sklearn.datasets import load_digits

from sims.results.attack_results import read_attack_rows

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
SCRIPTS = ROOT / "examples" / "deployment"
SITES, HELD = 3, 399  # nodes, and images of each
ROUNDS = 7  # enough for a node to be missed and to come back before the server is killed
SHORT = 2  # where nobody dies: one round of burn-in, one that gives a sample
LIMIT = 900  # seconds until a step that never ends is given up; none is expected to take as long


class Federation(NamedTuple):
    """A SuperLink that runs, and the folders of those who meet there."""

    folder: Path
    port: int
    started: list["subprocess.Popen[bytes]"]

    def start(self, name: str, *command: object) -> "subprocess.Popen[bytes]":
        """Start a process whose home and log are its own, in a group of its own."""
        home = self.folder / name
        home.mkdir(exist_ok=True)
        with (home / "log").open("wb") as log:
            process = subprocess.Popen(
                [*map(str, command)],
                cwd=self.folder / "app",
                env=environment(home),
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
            f'[superlink.here]\naddress = "127.0.0.1:{self.port}"\n'
            f'root-certificates = "{self.folder}/pki/ca.crt"\n'
        )
        return self.start(name, BIN / "flwr", *words)

    def node(self, number: int) -> "subprocess.Popen[bytes]":
        """Start a node with the example's script, on an address of its own where there is one."""
        site = self.folder / f"site-{number}"
        words = (site / "node.key", number, site / "own.npz", site / "state")
        host = address(number)
        link, ca = f"127.0.0.1:{self.port}", self.folder / "pki" / "ca.crt"
        script = SCRIPTS / "supernode.sh"
        return self.start(f"site-{number}", "sh", script, link, ca, *words, host, free(host))

    def link(self) -> None:
        """Start the SuperLink with the example's script; return once it answers."""
        script, host = SCRIPTS / "superlink.sh", "127.0.0.1"
        words = (self.folder / "pki", self.folder / "link.db", host, self.port)
        link = self.start("link", "sh", script, *words)
        trusted = ssl.create_default_context(cafile=str(self.folder / "pki" / "ca.crt"))

        def ready() -> bool:
            assert link.poll() is None, self.log("link")
            try:
                url = f"https://{host}:{self.port}/health"
                return httpx.get(url, verify=trusted, timeout=20).status_code == 200
            except httpx.TransportError:
                return False

        until(ready, lambda: self.log("link"))

    def post(self, path: str, content: bytes) -> int:
        """Send the SuperLink a request of nobody; return the status of its answer."""
        trusted = ssl.create_default_context(cafile=str(self.folder / "pki" / "ca.crt"))
        url = f"https://127.0.0.1:{self.port}{path}"
        return httpx.post(url, content=content, verify=trusted, timeout=60).status_code

    def log(self, name: str) -> str:
        """Return what a process said."""
        return (self.folder / name / "log").read_text(errors="replace")


def environment(home: Path) -> dict[str, str]:
    """Return the environment of a process whose Flower home is `home`."""
    return {**os.environ, "FLWR_HOME": str(home), "PATH": f"{BIN}:{os.environ['PATH']}"}


def address(number: int) -> str:
    """Return a loopback address for each node, the common one where the system has no other."""
    own = f"127.0.0.{number + 2}"
    with socket.socket() as door:
        try:
            door.bind((own, 0))
        except OSError:
            return "127.0.0.1"
    return own


def free(host: str = "127.0.0.1") -> int:
    """Return a port that nobody listens on."""
    with socket.create_server((host, 0)) as door:
        return int(door.getsockname()[1])


def until(condition: Callable[[], object], logs: Callable[[], str]) -> None:
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


def made(folder: Path) -> None:
    """Write the app as it is bundled, certificates and keys, and each party's own images."""
    copy_app(folder)
    keys = [sys.executable, str(SCRIPTS / "certificates.py")]
    makers = [
        [*keys, "server", str(folder / name), "localhost", "127.0.0.1"]
        for name in ("pki", "foreign")
    ]
    nodes = [*(f"site-{k}" for k in range(SITES)), "unknown"]
    makers += [[*keys, "node", str(folder / name)] for name in nodes]
    running = [subprocess.Popen(maker, stdout=subprocess.DEVNULL) for maker in makers]
    assert [maker.wait() for maker in running] == [0] * len(running)
    found, order = load_digits(), np.random.default_rng(0).permutation(1797)
    x, y = found.images[order] / 16, found.target[order]
    np.savez(folder / "server.npz", x_train=x[:600], y_train=y[:600])
    for k in range(SITES):
        own = slice(600 + k * HELD, 600 + (k + 1) * HELD)
        np.savez(folder / f"site-{k}" / "own.npz", x_train=x[own], y_train=y[own])


@contextmanager
def federation(folder: Path) -> Iterator[Federation]:
    """Start a SuperLink with the example's script, register all keys; end all that was started."""
    made(folder)
    found = Federation(folder, free(), [])
    try:
        found.link()
        asked = [
            found.flwr(f"key-{k}", "supernode", "register", f"{folder}/site-{k}/node.pub", "here")
            for k in range(SITES)
        ]
        for k, command in enumerate(asked):
            assert command.wait(LIMIT) == 0, found.log(f"key-{k}")
        yield found
    finally:
        end(found)


def end(found: Federation) -> None:
    """Kill every process of a federation."""
    for process in found.started:
        if process.poll() is None:  # the number of one that has ended may be another's by now
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    kill(f"FLWR_HOME={found.folder}/")


def kill(variable: str) -> None:
    """Kill all processes whose environment has a variable like this, whatever their group."""
    for entry in Path("/proc").glob("[0-9]*/environ"):
        try:
            if variable.encode() in entry.read_bytes():
                os.kill(int(entry.parent.name), signal.SIGKILL)
        except (OSError, ProcessLookupError):
            continue


def events(run: Path) -> list[dict[str, object]]:
    """Return the rounds of a run so far."""
    path = run / "events.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def turned_away(found: Federation) -> dict[str, "subprocess.Popen[bytes]"]:
    """Start nodes without a key, with one that nobody registered, with a foreign authority."""
    link, first = f"127.0.0.1:{found.port}", found.folder / "site-0"
    ca, script = found.folder / "pki" / "ca.crt", SCRIPTS / "supernode.sh"
    keyless = ("--superlink", link, "--root-certificates", ca, "--port", free())
    data = (0, first / "own.npz", found.folder / "nowhere", "127.0.0.1")
    unknown = (link, ca, found.folder / "unknown" / "node.key", *data, free())
    foreign = (link, found.folder / "foreign" / "ca.crt", first / "node.key", *data, free())
    return {
        "keyless": found.start("keyless", BIN / "flower-supernode", *keyless),
        "unknown": found.start("unknown", "sh", script, *unknown),
        "foreign-ca": found.start("foreign-ca", "sh", script, *foreign),
    }


WORDS = {
    "keyless": "must be registered",
    "unknown": "Failed to activate",
    "foreign-ca": "CERTIFICATE_VERIFY_FAILED",
}
"""What a node says that is turned away."""


def asked(
    found: Federation, name: str, run: Path, rounds: int = ROUNDS, **more: str
) -> "subprocess.Popen[bytes]":
    """Start a user's `flwr run` into a folder."""
    config = (
        f'out="{run}" data.source="npz" data.path="{found.folder}/server.npz" clients={SITES} '
        f'rounds={rounds} data.partition="iid" data.validation=150 data.auxiliary=150 '
        'data.test=200 prior.mode="fixed" '
        'cel.kind="cluster" cel.warm-up=0 cel.ramp=0.3 chain.burn-in=0.5'
    )
    config += "".join(f" {key}={value}" for key, value in more.items())
    return found.flwr(name, "run", ".", "here", "--stream", "--run-config", config)


def lost(event: dict[str, object]) -> list[object]:
    """Return the partitions that a round was without."""
    rejected = event["rejected"]
    assert isinstance(rejected, list)
    return [one["client"] for one in rejected]


def dies_and_returns(found: Federation, run: Path, node: "subprocess.Popen[bytes]") -> None:
    """Kill the last node; once a round was without it, start it until it takes part again."""
    os.killpg(node.pid, signal.SIGKILL)
    last = SITES - 1
    until(lambda: lost(events(run)[-1]) == [last], lambda: found.log("user"))
    assert "Node Unavailable" in str(events(run)[-1]["rejected"])
    again = found.node(last)

    def back() -> bool:
        nonlocal again
        if again.poll() is not None:  # while its dead predecessor counts as alive
            again = found.node(last)
        return lost(events(run)[-1]) == []

    until(back, lambda: found.log("user") + found.log(f"site-{last}"))


def is_completed(found: Federation) -> bool:
    """Say whether the SuperLink's last run ended well."""
    told = found.flwr("list", "ls", "here", "--limit", "1", "--format", "json")
    return told.wait(LIMIT) == 0 and "finished:completed" in found.log("list")


def check_turned_away(found: Federation, refused: dict[str, "subprocess.Popen[bytes]"]) -> None:
    """Wait for nodes that may not take part, and see what they say."""
    for name, words in WORDS.items():
        assert refused[name].wait(LIMIT) == 1 and words in found.log(name), found.log(name)


def check_own_images(run: Path, site: Path) -> None:
    """See that the nodes trained on what they hold, and kept their state.

    eta kappa of the fixed prior of width 1 is eta/N: N is what the nodes hold, not the server.
    """
    first = events(run)[0]
    assert round(float(str(first["rate"])) / float(str(first["pull"]))) == SITES * HELD
    assert json.loads((run / "result.json").read_text())["between-client-spread"] is None
    assert list((site / "state").glob("run-*/*.safetensors"))


@pytest.mark.long
def test_three_sites_train_over_tls(tmp_path: Path) -> None:
    """Keys on: strangers are turned away, the others train on images of their own."""
    run = tmp_path / "run"
    with federation(tmp_path) as found:
        assert "replies of at most 100 MB are taken" in found.log("link")
        assert found.post("/v1/fleet/push-object", bytes(17_000_000)) == 413
        for k in range(SITES):
            found.node(k)
        refused = turned_away(found)
        user = asked(found, "user", run, SHORT)
        assert user.wait(LIMIT) == 0 and (run / "result.json").exists(), found.log("user")
        check_turned_away(found, refused)
        assert is_completed(found)
    assert [lost(one) for one in events(run)] == [[]] * SHORT
    check_own_images(run, tmp_path / "site-0")


@pytest.mark.long
def test_three_sites_train_while_a_node_and_the_server_die_and_come_back(tmp_path: Path) -> None:
    """The run that the broken server lost goes on, is attacked and reported."""
    run = tmp_path / "run"
    with federation(tmp_path) as found:
        nodes = [found.node(k) for k in range(SITES)]
        refused = turned_away(found)
        user = asked(found, "user", run)
        until(lambda: events(run) or user.poll() is not None, lambda: found.log("user"))
        assert events(run), found.log("user") + found.log("site-0")
        dies_and_returns(found, run, nodes[-1])
        kill(f"FLWR_HOME={tmp_path}/link")
        broken = events(run)
        check_turned_away(found, refused)
        assert len(broken) < ROUNDS and not (run / "result.json").exists()
        found.link()
        again = asked(found, "again", run, resume="true")
        assert again.wait(LIMIT) == 0 and (run / "result.json").exists(), found.log("again")
        assert is_completed(found)
    rounds = events(run)
    assert rounds[: len(broken)] == broken
    assert [one["round"] for one in rounds] == [*range(1, ROUNDS + 1)]
    assert lost(rounds[0]) == lost(rounds[-1]) == []
    assert [SITES - 1] in [lost(one) for one in rounds]
    check_own_images(run, tmp_path / "site-0")
    for command in (["attack", str(run), "--set", "attack.names=optimal"], ["report", str(run)]):
        subprocess.run([sys.executable, "-m", "sims", *command], cwd=ROOT, check=True)
    rows = read_attack_rows(run)
    assert {row.attack for row in rows} == {"optimal"}
    assert "</html>" in (run / "report.html").read_text()
