"""What a fault does to a federation of real processes, and who sees it.

| fault | what happens | who sees it |
|---|---|---|
| a node's processes are stopped | left out of the round, back in a later one | round log |
| a node is killed | the same; back once its service manager starts it | round log |
| a node has another CA, or the server's certificate has expired | exit 1 | the node |
| a node's key is not registered | exit 1 | the node |
| a node's clock is off | exit 1 | the node |
| a node's bundle is edited, or not whole | the run does not start | `flwr run`, `flwr ls` |
| a node's state folder is none | the run does not start | `flwr run`, `flwr ls` |
| the disk with a node's states is full | left out of the round | round log |
| garbage and half handshakes at the SuperLink | nothing | nobody |
| 1 100 connections of a byte a second | nothing | nobody |
| the ServerApp is killed | the run has failed after a minute, and is resumed | `flwr ls` |
| the SuperLink is killed | the run has failed, and is resumed after a restart | `flwr ls` |

A reply beyond the limit is refused piece by piece in `test_deployment_files.py`. The nodes that did
nothing wrong are online after each fault.
"""

import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import pytest
from flwr.cli.install import install_from_fab

from fedcel.files import read_json
from sims.watch import describe_run
from tests.system.federation import (
    HOST,
    IMAGES,
    LIMIT,
    SCRIPTS,
    SITES,
    Federation,
    find_port,
    list_rejected,
    mount_small_disk,
    open_federation,
    read_events,
    signal_processes,
    wait_until,
)
from tests.system.slow_connections import HALF_HANDSHAKE, hold_connections, send_garbage

pytestmark = pytest.mark.long

SLOW = 1100  # more than the files that many systems allow a process
TLS_RECORD = b"\x16\x03\x01"
OFFLINE = "Node Unavailable"
CLOCKED_NODE = """
import datetime, runpy, sys
from flwr.supercore import date
now = date.now
date.now = lambda: now() + datetime.timedelta(hours=2)
sys.path.insert(0, sys.argv.pop(1))
runpy.run_module("supernode", run_name="__main__")
"""
"""A node whose clock is two hours ahead."""
EXPIRED = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import certificates
certificates.DAYS = -1 / 48
certificates.renew(Path(sys.argv[2]), [])
"""
"""Renews a server's certificate, which has expired half an hour ago."""


class Site(NamedTuple):
    """A federation whose nodes all run."""

    federation: Federation
    nodes: list["subprocess.Popen[bytes]"]

    def restart_node(self, number: int, state: Path | None = None) -> None:
        """Start a node that has ended, until it is let in: its predecessor may count as alive."""
        federation = self.federation

        def is_online() -> bool:
            if self.nodes[number].poll() is not None:
                self.nodes[number] = federation.start_node(number, state)
            return "SuperNode ID" in federation.log(f"site-{number}")

        wait_until(is_online, lambda: federation.log(f"site-{number}"))

    def end_node(self, number: int) -> None:
        os.killpg(self.nodes[number].pid, signal.SIGTERM)
        assert self.nodes[number].wait(LIMIT) == 0, self.federation.log(f"site-{number}")

    def wait_for_training(self, user: "subprocess.Popen[bytes]") -> None:
        """Wait until all nodes have a round's model."""
        federation = self.federation
        logs = [federation.folder / f"site-{k}" / "log" for k in range(SITES)]
        begin = [len(log.read_bytes()) for log in logs]

        def is_training() -> bool:
            assert user.poll() is None, federation.log("user")
            return all(
                b"Receiving: train" in log.read_bytes()[start:]
                for log, start in zip(logs, begin, strict=True)
            )

        wait_until(is_training, lambda: federation.log("user"))

    def wait_for_round(self, run: Path, user: "subprocess.Popen[bytes]") -> None:
        wait_until(
            lambda: read_events(run) or user.poll() is not None,
            lambda: self.federation.log("user"),
        )
        assert read_events(run), self.federation.log("user")

    def signal_site(self, number: int, kind: signal.Signals) -> None:
        assert signal_processes(f"FLWR_HOME={self.federation.folder}/site-{number}", kind) > 1


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A SuperLink and three nodes, for all faults one after the other."""
    with open_federation(tmp_path_factory.mktemp("federation")) as federation:
        nodes = [federation.start_node(k) for k in range(SITES)]
        wait_until(lambda: federation.count_online() == SITES, lambda: federation.log("nodes"))
        yield Site(federation, nodes)


def read_rejections(run: Path) -> list[dict[int, str]]:
    """Return whom each round was without, and why."""
    return [list_rejected(event) for event in read_events(run)]


def check_end(site: Site, user: "subprocess.Popen[bytes]", status: str, sentence: str) -> None:
    """See how a run ended, what its user was told, and that all nodes are online again."""
    federation = site.federation
    user.wait(LIMIT)
    said = federation.log("user")
    assert re.search(sentence, said), said
    assert federation.last_status() == f"finished:{status}", said
    wait_until(lambda: federation.count_online() == SITES, lambda: federation.log("nodes"))


@contextmanager
def serve_expired(folder: Path) -> Iterator[int]:
    """Serve TLS with a certificate that has expired, by the authority that all nodes know."""
    script = [sys.executable, "-c", EXPIRED, str(SCRIPTS), str(folder)]
    subprocess.run(script, check=True, stdout=subprocess.DEVNULL)
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(folder / "server.crt", folder / "server.key")
    (folder / "server.crt").unlink()
    (folder / "server.key").unlink()
    for name in ("server.crt", "server.key"):
        (folder / f"{name}.old").rename(folder / name)
    with socket.create_server((HOST, 0)) as door:

        def greet() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = door.accept()
                    with suppress(OSError):
                        serving.wrap_socket(connection, server_side=True)

        threading.Thread(target=greet, daemon=True).start()
        yield int(door.getsockname()[1])


def start_strangers(
    federation: Federation, expired: int
) -> dict[str, tuple["subprocess.Popen[bytes]", str]]:
    """Start nodes that may not take part; return each with what it has to say."""
    folder, script = federation.folder, SCRIPTS / "supernode.sh"
    link, ca, site = f"{HOST}:{federation.port}", folder / "pki" / "ca.crt", folder / "site-0"
    words = (0, site / "own.npz", folder / "nowhere", HOST)

    def start(name: str, *door: object) -> "subprocess.Popen[bytes]":
        return federation.start(name, "sh", script, *door, *words, find_port())

    keyless = ("--superlink", link, "--root-certificates", ca, "--port", find_port())
    clocked = (*keyless[:-1], find_port(), "--auth-supernode-private-key", site / "node.key")
    python = (sys.executable, "-c", CLOCKED_NODE, SCRIPTS)
    supernode = (sys.executable, SCRIPTS / "supernode.py")
    return {
        "no-key": (federation.start("no-key", *supernode, *keyless), "must be registered"),
        "unknown-key": (
            start("unknown-key", link, ca, folder / "unknown" / "node.key"),
            r"\[code: 2004\] Failed to activate",
        ),
        "other-authority": (
            start("other-authority", link, folder / "foreign" / "ca.crt", site / "node.key"),
            "CERTIFICATE_VERIFY_FAILED.*unable to get local issuer",
        ),
        "expired-certificate": (
            start("expired-certificate", f"{HOST}:{expired}", ca, site / "node.key"),
            "CERTIFICATE_VERIFY_FAILED.*certificate has expired",
        ),
        "other-clock": (
            federation.start("other-clock", *python, *clocked),
            r"its clock is 7[12]\d\d s ahead of the server's; set it",
        ),
    }


def test_strangers_and_slow_connections_at_the_door_and_a_full_disk(site: Site) -> None:
    """A round goes on beside all of them; only the node without a place for its state misses it."""
    federation, run = site.federation, site.federation.folder / "beside-strangers"
    state, address = federation.folder / "small-disk", (HOST, federation.port)
    with (
        mount_small_disk(state, "nr_inodes=2"),
        serve_expired(federation.folder / "pki") as expired,
        hold_connections(address, SLOW) as slow,
    ):
        assert len(slow) == SLOW and federation.is_healthy()
        site.end_node(SITES - 1)
        site.restart_node(SITES - 1, state)
        user = federation.start_run("user", run, 1)
        strangers = start_strangers(federation, expired)
        for content in (bytes(1000), b"GET / HTTP/1.1\r\n\r\n", os.urandom(5000), HALF_HANDSHAKE):
            assert not send_garbage(address, content).startswith(TLS_RECORD)
        for name, (stranger, words) in strangers.items():
            assert stranger.wait(LIMIT) == 1, federation.log(name)
            assert re.search(words, federation.log(name)), federation.log(name)
        check_end(site, user, "completed", "the run is complete")
        assert len(slow) == SLOW
        site.end_node(SITES - 1)
    site.restart_node(SITES - 1)
    (rejected,) = read_rejections(run)
    assert rejected.keys() == {SITES - 1} and "No space left on device" in rejected[SITES - 1]


def test_a_stopped_and_a_killed_node_are_left_out_and_come_back(site: Site) -> None:
    """Both at once, in a round that goes on with the third; none is missing at the end."""
    federation, run = site.federation, site.federation.folder / "stopped"
    assert "replies of at most 100 MB are taken" in federation.log("link")
    assert federation.post("/v1/fleet/push-object", bytes(17_000_000)) == 413
    user = federation.start_run("user", run, 4, **{"strategy.least-share": 0.3})
    site.wait_for_training(user)
    site.signal_site(1, signal.SIGSTOP)
    site.signal_site(2, signal.SIGKILL)
    site.wait_for_round(run, user)
    site.signal_site(1, signal.SIGCONT)
    site.nodes[2].wait(LIMIT)
    site.restart_node(2)
    check_end(site, user, "completed", "the run is complete")
    first, *_, last = read_rejections(run)
    assert first.keys() == {1, 2} and all(OFFLINE in reason for reason in first.values())
    assert last == {}
    check_own_images(run, federation.folder / "site-0")
    watched = describe_run(run)
    assert (watched["phase"], watched["round"]) == ("finished", 4) and watched["left-out"]


def check_own_images(run: Path, site: Path) -> None:
    """See that the nodes trained on what they hold, and kept their state.

    eta kappa of the fixed prior of width 1 is eta/N: N is what the nodes hold, not the server.
    """
    first = read_events(run)[0]
    assert round(float(str(first["rate"])) / float(str(first["pull"]))) == SITES * IMAGES
    assert read_json(run / "result.json")["between-client-spread"] is None
    assert list((site / "state").glob("run-*/*.safetensors"))


@contextmanager
def break_bundles(federation: Federation) -> Iterator[None]:
    """Take a file from the bundle of the first node, change one in that of the second."""
    federation.ask_flwr("build", "build")
    (file,) = (federation.folder / "app").glob("*.fab")
    homes = [federation.folder / f"site-{k}" for k in (0, 1)]
    bundles = [install_from_fab(file.read_bytes(), home, skip_prompt=True) for home in homes]
    modules = [bundle / "clients" / "flower" / "posterior_client.py" for bundle in bundles]
    code = modules[0].read_bytes()
    modules[0].unlink()
    modules[1].write_bytes(code + b"# changed\n")
    try:
        yield
    finally:
        for module in modules:
            module.write_bytes(code)


def test_broken_nodes_are_refused_before_round_one(site: Site) -> None:
    """Half a bundle, other code, a state path that is no folder: each with its reason."""
    federation, run = site.federation, site.federation.folder / "refused"
    (federation.folder / "file").write_text("")
    site.end_node(2)
    site.restart_node(2, federation.folder / "file")
    with break_bundles(federation):
        user = federation.start_run("user", run, 1)
        sentence = (
            "the run FAILED.*: 0 partitions answered, clients is 3; 3 nodes were asked; 3 were "
            "refused:(?=.*No module named 'clients.flower.posterior_client')"
            "(?=.*partition 1: its fedcel has other code than the server's)"
            "(?=.*state-path is '.*/file', which takes no files)"
        )
        check_end(site, user, "failed", sentence)
    assert read_events(run) == []
    site.end_node(2)
    site.restart_node(2)


def kill_server_app(site: Site) -> None:
    """Kill what runs the rounds; the SuperLink notices that it is silent."""
    home = f"FLWR_HOME={site.federation.folder}/link"
    assert signal_processes(home, signal.SIGKILL, "flwr-serverapp") == 1
    wait_until(
        lambda: site.federation.last_status() == "finished:failed",
        lambda: site.federation.log("list"),
    )
    assert "No heartbeat received from the task" in site.federation.log("list")


def kill_link(site: Site) -> None:
    """Kill the SuperLink and all that it has started; start it again on the same database."""
    assert signal_processes(f"FLWR_HOME={site.federation.folder}/link", signal.SIGKILL) > 1
    site.federation.start_link()
    wait_until(
        lambda: site.federation.last_status() == "finished:failed",
        lambda: site.federation.log("list"),
    )


@pytest.mark.parametrize("kill", [kill_server_app, kill_link])
def test_a_run_whose_server_is_killed_has_failed_and_is_resumed(
    site: Site, kill: Callable[[Site], None]
) -> None:
    """In its second round; the first is kept."""
    federation, run = site.federation, site.federation.folder / kill.__name__
    user = federation.start_run("user", run, 2)
    site.wait_for_round(run, user)
    site.wait_for_training(user)  # a round is in its log before the state that ends it
    begun = read_events(run)
    kill(site)
    user.wait(LIMIT)
    assert "the run is complete" not in federation.log("user")
    wait_until(lambda: federation.count_online() == SITES, lambda: federation.log("nodes"))
    user = federation.start_run("user", run, 2, resume="true")
    check_end(site, user, "completed", "the run is complete")
    assert read_events(run)[:1] == begun and read_rejections(run) == [{}, {}]
